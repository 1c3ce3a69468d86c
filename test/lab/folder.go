package lab

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

const (
	folderPrefix = "lockstep-lab-"
	lockName     = "lock"

	// What etcd may need in memory-backed storage: its log and database for the
	// largest cluster that the benchmarks simulate, with room.
	minShmBytes = 4 << 30
)

// folder is where a lab keeps its certificates, configuration, data and logs.
// Its lock tells other processes that the lab is alive; its reaper removes it
// when this process ends without doing so.
type folder struct {
	path   string
	lock   *os.File
	reaper *exec.Cmd
	leash  io.Closer // the reaper acts when this closes
}

// bases are the folders in which labs may be, the preferred one first.
func bases() []string {
	temp := os.TempDir()
	if freeBytes("/dev/shm") >= minShmBytes {
		return []string{"/dev/shm", temp}
	}
	return []string{temp, "/dev/shm"}
}

// newFolder makes the folder of a new lab, in memory where there is room: etcd
// is the slowest part of a small cluster on an ordinary disk.
func newFolder() (_ *folder, err error) {
	base := bases()[0]
	// Made and locked under another name first: under its final one a sweep by
	// another process could meet it before it is locked.
	scratch, err := os.MkdirTemp(base, "new-"+folderPrefix)
	if err != nil {
		return nil, fmt.Errorf("making the lab's folder: %w", err)
	}
	f := &folder{path: scratch}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.remove())
		}
	}()
	f.lock, err = os.Create(filepath.Join(scratch, lockName))
	if err != nil {
		return nil, fmt.Errorf("making the lab's lock: %w", err)
	}
	if locked, err := tryLock(f.lock); err != nil || !locked {
		return nil, fmt.Errorf("locking the lab's new folder (locked elsewhere: %t): %w", !locked, err)
	}
	final := filepath.Join(base, filepath.Base(scratch)[len("new-"):])
	if err := os.Rename(scratch, final); err != nil {
		return nil, fmt.Errorf("naming the lab's folder: %w", err)
	}
	f.path = final
	if err := f.startReaper(); err != nil {
		return nil, err
	}
	return f, nil
}

// reaperScript waits for the end of its input, which the death of the lab's
// process brings, and removes the folder. The components die at the same
// moment, so one of them may still write: hence the tries.
const reaperScript = `read -r _
for _ in 1 2 3 4 5 6 7 8 9 10; do
	rm -rf -- "$1" 2>/dev/null && exit 0
	sleep 0.2
done`

func (f *folder) startReaper() error {
	cmd := exec.Command("/bin/sh", "-c", reaperScript, "lab-reaper", f.path)
	cmd.Dir = "/"
	cmd.SysProcAttr = detached()
	leash, err := cmd.StdinPipe()
	if err != nil {
		return fmt.Errorf("making the pipe of the lab's reaper: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting the lab's reaper: %w", err)
	}
	f.reaper, f.leash = cmd, leash
	return nil
}

// remove deletes the folder and ends its reaper.
func (f *folder) remove() error {
	var errs []error
	if f.leash != nil {
		errs = append(errs, f.leash.Close(), f.reaper.Wait())
	}
	errs = append(errs, os.RemoveAll(f.path))
	if f.lock != nil {
		errs = append(errs, f.lock.Close())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("removing the lab's folder %s: %w", f.path, err)
	}
	return nil
}

// Sweep removes the folders of labs that died together with their reapers, as
// in a machine that was switched off, and returns their paths. Start calls it;
// living labs are left alone.
func Sweep() (removed []string, err error) {
	var errs []error
	for _, base := range bases() {
		found, err := filepath.Glob(filepath.Join(base, folderPrefix+"*"))
		if err != nil {
			return removed, fmt.Errorf("looking for abandoned labs: %w", err)
		}
		for _, path := range found {
			gone, err := removeAbandoned(path)
			if err != nil {
				errs = append(errs, fmt.Errorf("removing the abandoned lab %s: %w", path, err))
			}
			if gone {
				removed = append(removed, path)
			}
		}
	}
	return removed, errors.Join(errs...)
}

// removeAbandoned removes the folder of a lab unless the lab is alive or belongs
// to another user.
func removeAbandoned(path string) (bool, error) {
	lock, err := os.OpenFile(filepath.Join(path, lockName), os.O_RDWR, 0)
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, os.ErrPermission):
		return false, nil
	case err != nil:
		return false, err
	}
	defer func() { _ = lock.Close() }()
	locked, err := tryLock(lock)
	if err != nil || !locked {
		return false, err
	}
	return true, os.RemoveAll(path)
}
