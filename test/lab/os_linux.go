package lab

import (
	"fmt"
	"io"
	"net"
	"syscall"
)

// mortal makes a child that the kernel kills when the thread that forked it
// ends (hence the spawner), and which a Ctrl-C in the terminal does not reach:
// the lab ends its components itself.
func mortal() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}

// detached makes a child that outlives this process and its terminal.
func detached() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true}
}

// freeBytes returns the room in a file system, 0 if it cannot be told.
func freeBytes(path string) uint64 {
	var stat syscall.Statfs_t
	if err := syscall.Statfs(path, &stat); err != nil {
		return 0
	}
	return stat.Bavail * uint64(stat.Bsize)
}

// claimPort reserves a port among all labs of this machine. The claim is an
// abstract socket: it exists once per network namespace, as the port does, and
// no death of a process can leave it behind.
func claimPort(port int) (io.Closer, error) {
	name := fmt.Sprintf("@lockstep-lab-port-%d", port)
	claim, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("claiming port %d: %w", port, err)
	}
	return claim, nil
}
