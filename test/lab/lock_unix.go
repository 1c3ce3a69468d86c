//go:build unix

package lab

import (
	"errors"
	"os"
	"syscall"
)

// tryLock takes an exclusive lock on the open file unless somebody has it. The
// kernel drops the lock when the last descriptor of this opening is closed, so
// also when the process dies.
func tryLock(file *os.File) (locked bool, err error) {
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}
