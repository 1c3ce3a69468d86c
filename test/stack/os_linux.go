package stack

import "syscall"

// mortal makes a child that dies with this process. Unlike the lab's, it is tied
// to the forking thread; Go's main threads live as long as the process unless a
// goroutine locked to one ends.
func mortal() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
