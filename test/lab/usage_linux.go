package lab

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// clockTicks is what Linux counts processor time in, per second, on every
// platform that Go supports (USER_HZ).
const clockTicks = 100

// CPUSeconds is the processor time, user and system, that a process has used.
func CPUSeconds(pid int) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("reading the processor time of process %d: %w", pid, err)
	}
	// The command, in parentheses, may have spaces in it: proc_pid_stat(5).
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	const utime, stime = 11, 12
	if len(fields) <= stime {
		return 0, fmt.Errorf("reading the processor time of process %d: cannot parse %q", pid, text)
	}
	ticks := 0.0
	for _, field := range []int{utime, stime} {
		n, err := strconv.ParseFloat(fields[field], 64)
		if err != nil {
			return 0, fmt.Errorf("reading the processor time of process %d: %w", pid, err)
		}
		ticks += n
	}
	return ticks / clockTicks, nil
}
