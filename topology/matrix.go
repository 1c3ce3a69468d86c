package topology

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Matrix is what `nvidia-smi topo -m` prints of a node's GPUs.
type Matrix struct {
	GPUs []string // the names of the columns, GPU0 and on
	// Cells[i][j] is between GPUs[i] and GPUs[j].
	Cells [][]Cell
	// NUMA is the NUMA node of each GPU, -1 where it does not show. Where the column
	// is missing, GPUs with the same CPU affinity share a number.
	NUMA []int
}

// Cell is one connection of a Matrix: NVLinks, or the path where there are none.
type Cell struct {
	Path    Path
	NVLinks int
}

// Bounds of what is read: far above any node.
const (
	maxMatrixText    = 1 << 20
	maxMatrixDevices = 256
	maxNVLinks       = 64
)

var (
	ansi     = regexp.MustCompile("\x1b\\[[0-9;]*[A-Za-z]")
	cpuList  = regexp.MustCompile(`^[0-9]+([-,][0-9]+)+$`)
	gpuName  = regexp.MustCompile(`^GPU[0-9]+$`)
	affinity = []string{"CPU Affinity", "NUMA Affinity", "GPU NUMA ID"}
)

// ParseMatrix reads what `nvidia-smi topo -m` prints: of all driver versions, with
// or without NICs and affinities, by tabs or by spaces. Lines that begin with # are
// left out, and the legend below. The error names the line that is wrong.
func ParseMatrix(text string) (*Matrix, error) {
	if len(text) > maxMatrixText {
		return nil, fmt.Errorf("topology matrix: %d bytes; at most %d are read", len(text), maxMatrixText)
	}
	p := matrixParser{rows: map[string][]string{}}
	for i, line := range strings.Split(ansi.ReplaceAllString(text, ""), "\n") {
		line = strings.TrimRight(line, " \t\r")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if strings.Contains(line, "Legend:") {
			break
		}
		if err := p.line(line); err != nil {
			return nil, fmt.Errorf("topology matrix: line %d: %w", i+1, err)
		}
	}
	m, err := p.matrix()
	if err != nil {
		return nil, fmt.Errorf("topology matrix: %w", err)
	}
	return m, nil
}

type matrixParser struct {
	devices []string // the columns: GPUs and NICs
	columns int      // of affinities
	rows    map[string][]string
	cpus    map[string]string // by GPU
	numa    map[string]string
}

func (p *matrixParser) line(line string) error {
	if p.devices == nil {
		return p.header(line)
	}
	words := strings.Fields(line)
	name, cells := words[0], words[1:]
	switch {
	case !slices.Contains(p.devices, name):
		return fmt.Errorf("%.40q is not among the columns", name)
	case p.rows[name] != nil:
		return fmt.Errorf("%s is there twice", name)
	case len(cells) < len(p.devices):
		return fmt.Errorf("%s has %d cells; there are %d columns", name, len(cells), len(p.devices))
	}
	p.rows[name] = cells[:len(p.devices)]
	p.affinities(name, cells[len(p.devices):])
	return nil
}

func (p *matrixParser) header(line string) error {
	for _, column := range affinity {
		if at := strings.Index(line, column); at >= 0 {
			p.columns++
			line = line[:at] + line[at+len(column):]
		}
	}
	p.devices = strings.Fields(line)
	switch {
	case len(p.devices) == 0 || !gpuName.MatchString(p.devices[0]):
		return fmt.Errorf("%.80q is not the header: no GPU0", line)
	case len(p.devices) > maxMatrixDevices:
		return fmt.Errorf("%d columns; at most %d are read", len(p.devices), maxMatrixDevices)
	}
	for i, name := range p.devices {
		if slices.Contains(p.devices[:i], name) {
			return fmt.Errorf("column %.40q is there twice", name)
		}
	}
	p.cpus, p.numa = map[string]string{}, map[string]string{}
	return nil
}

// affinities reads the columns after the devices. Empty ones show only in
// the number of words.
func (p *matrixParser) affinities(name string, words []string) {
	if len(words) == 0 || len(words) < p.columns && !cpuList.MatchString(words[0]) {
		return
	}
	p.cpus[name] = words[0]
	if p.columns > 1 && len(words) > 1 {
		p.numa[name] = words[1]
	}
}

func (p *matrixParser) matrix() (*Matrix, error) {
	if p.devices == nil {
		return nil, fmt.Errorf("no header with GPU0")
	}
	m := &Matrix{}
	var columns []int
	for i, name := range p.devices {
		if gpuName.MatchString(name) {
			m.GPUs = append(m.GPUs, name)
			columns = append(columns, i)
		}
	}
	for i, name := range m.GPUs {
		row, ok := p.rows[name]
		if !ok {
			return nil, fmt.Errorf("no row of %s", name)
		}
		cells := make([]Cell, len(columns))
		for j, column := range columns {
			if (i == j) != (row[column] == "X") {
				return nil, fmt.Errorf("%s to %s is %.20q", name, m.GPUs[j], row[column])
			}
			if i == j {
				continue
			}
			cell, err := parseCell(row[column])
			if err != nil {
				return nil, fmt.Errorf("%s to %s: %w", name, m.GPUs[j], err)
			}
			cells[j] = cell
		}
		m.Cells = append(m.Cells, cells)
	}
	if err := m.balance(); err != nil {
		return nil, err
	}
	m.NUMA = p.numaOf(m.GPUs)
	return m, nil
}

// parseCell reads one cell. SOC is what SYS was called before.
func parseCell(word string) (Cell, error) {
	if digits, ok := strings.CutPrefix(word, "NV"); ok {
		n, err := strconv.Atoi(digits)
		if err != nil || n < 1 || n > maxNVLinks {
			return Cell{}, fmt.Errorf("%.20q is not a number of NVLinks", word)
		}
		return Cell{NVLinks: n}, nil
	}
	if word == "SOC" {
		word = "SYS"
	}
	path, err := ParsePath(word)
	if err != nil || path == PathUnknown {
		return Cell{}, fmt.Errorf("unknown connection %.20q", word)
	}
	return Cell{Path: path}, nil
}

// balance makes both directions the same: where one GPU has lost a link, the pair
// has as many as the weaker.
func (m *Matrix) balance() error {
	for i := range m.Cells {
		for j := range i {
			a, b := &m.Cells[i][j], &m.Cells[j][i]
			if a.Path != b.Path || (a.NVLinks > 0) != (b.NVLinks > 0) {
				return fmt.Errorf("%s and %s disagree about their connection", m.GPUs[j], m.GPUs[i])
			}
			n := min(a.NVLinks, b.NVLinks)
			a.NVLinks, b.NVLinks = n, n
		}
	}
	return nil
}

func (p *matrixParser) numaOf(gpus []string) []int {
	out := make([]int, len(gpus))
	var lists []string
	for i, name := range gpus {
		out[i] = -1
		if n, err := strconv.Atoi(p.numa[name]); err == nil && n >= 0 {
			out[i] = n
		}
	}
	if slices.ContainsFunc(out, func(n int) bool { return n >= 0 }) {
		return out
	}
	for i, name := range gpus {
		list := p.cpus[name]
		if list == "" || list == "N/A" {
			continue
		}
		at := slices.Index(lists, list)
		if at < 0 {
			at = len(lists)
			lists = append(lists, list)
		}
		out[i] = at
	}
	return out
}
