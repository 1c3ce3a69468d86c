//go:build !linux

package lab

import "errors"

// CPUSeconds is known on Linux only.
func CPUSeconds(int) (float64, error) {
	return 0, errors.New("processor time is measured on Linux only")
}
