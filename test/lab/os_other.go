//go:build !linux

package lab

import (
	"io"
	"syscall"
)

// Outside Linux a lab works but is less tidy: its components outlive a process
// that is killed, two labs may draw the same port, and usage is not measured.

func mortal() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func detached() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

func freeBytes(string) uint64 { return 0 }

func claimPort(int) (io.Closer, error) { return io.NopCloser(nil), nil }
