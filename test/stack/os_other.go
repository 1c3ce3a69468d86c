//go:build !linux

package stack

import "syscall"

func mortal() *syscall.SysProcAttr { return nil }
