package topology

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestMatricesOfAllFormats(t *testing.T) {
	all := matrices(t)
	for name, want := range map[string]struct {
		gpus int
		numa []int
		cell map[[2]int]Cell
	}{
		"2x-nv2-bridge":                    {2, []int{0, 0}, map[[2]int]Cell{{0, 1}: {NVLinks: 2}}},
		"a100-2x-in-container-no-affinity": {2, []int{-1, -1}, map[[2]int]Cell{{0, 1}: {NVLinks: 12}}},
		"a100-8x-nvswitch-10nic":           {8, []int{0, 0, 0, 0, 1, 1, 1, 1}, map[[2]int]Cell{{7, 0}: {NVLinks: 12}}},
		"dgx1-v100-8x-hybrid-cube-mesh":    {8, []int{0, 0, 0, 0, 1, 1, 1, 1}, map[[2]int]Cell{{0, 3}: {NVLinks: 2}, {0, 5}: {Path: PathSystem}}},
		"polaris-hgx-a100-4x-nv4":          {4, []int{3, 2, 1, 0}, map[[2]int]Cell{{0, 1}: {NVLinks: 4}}},
		"pcie-8x-pix-pxb-2socket":          {8, []int{0, 0, 0, 0, 1, 1, 1, 1}, map[[2]int]Cell{{0, 1}: {Path: PathSingleSwitch}, {0, 2}: {Path: PathMultiSwitch}}},
		"l40s-4x-pcie-2numa":               {4, []int{0, 0, 1, 1}, map[[2]int]Cell{{0, 1}: {Path: PathNode}}},
		"h100-4x-nv6-nvlink-mesh":          {4, []int{3, 1, 7, 5}, map[[2]int]Cell{{0, 1}: {NVLinks: 6}}},
		"rtx5090-2x-phb":                   {2, []int{0, 0}, map[[2]int]Cell{{0, 1}: {Path: PathHostBridge}}},
	} {
		m := all[name]
		if m == nil {
			t.Errorf("no matrix %s", name)
			continue
		}
		if len(m.GPUs) != want.gpus || !reflect.DeepEqual(m.NUMA, want.numa) {
			t.Errorf("%s: %d GPUs on NUMA nodes %v", name, len(m.GPUs), m.NUMA)
		}
		for at, cell := range want.cell {
			if got := m.Cells[at[0]][at[1]]; got != cell {
				t.Errorf("%s: %v is %+v, want %+v", name, at, got, cell)
			}
		}
	}
}

const pair = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV2\t0-7\nGPU1\tNV2\t X \t0-7\n"

func TestMatrixDetails(t *testing.T) {
	for name, text := range map[string]string{
		"legend":          pair + "\nLegend:\n\n  X    = Self\n  SYS  = Connection traversing PCIe\n",
		"NIC legend":      pair + "\nNIC Legend:\n\n  NIC0: mlx5_0\n",
		"underlined":      "\t\x1b[4mGPU0\tGPU1\tCPU Affinity\x1b[0m\n" + pair[strings.Index(pair, "\n")+1:],
		"Windows":         strings.ReplaceAll(pair, "\n", "\r\n"),
		"one lost a link": strings.Replace(pair, "NV2", "NV3", 1),
	} {
		m, err := ParseMatrix(text)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if m.Cells[0][1].NVLinks != 2 || m.Cells[1][0].NVLinks != 2 || m.NUMA[1] != 0 {
			t.Errorf("%s: got %+v", name, m)
		}
	}
}

func TestBadMatrices(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"empty":          {"", "no header"},
		"not a matrix":   {"NVIDIA-SMI has failed\n", "line 1"},
		"cut off":        {pair[:strings.Index(pair, "GPU1\tNV2")], "no row of GPU1"},
		"cut in a row":   {pair[:len(pair)-9], "GPU1 has 1 cells"},
		"unknown cell":   {strings.ReplaceAll(pair, "NV2", "FOO"), `unknown connection "FOO"`},
		"no links":       {strings.ReplaceAll(pair, "NV2", "NV0"), `"NV0"`},
		"many links":     {strings.ReplaceAll(pair, "NV2", "NV99999"), `"NV99999"`},
		"asymmetric":     {strings.Replace(pair, "NV2", "SYS", 1), "GPU0 and GPU1 disagree"},
		"no diagonal":    {strings.ReplaceAll(pair, " X ", "NV2"), "GPU0 to GPU0"},
		"self elsewhere": {strings.ReplaceAll(pair, "NV2", "X"), "GPU0 to GPU1"},
		"twice":          {pair + "GPU1\tNV2\t X \t0-7\n", "line 4: GPU1 is there twice"},
		"column twice":   {strings.Replace(pair, "GPU1", "GPU0", 1), "is there twice"},
		"stray row":      {pair + "GPU7\tNV2\t X \t0-7\n", `"GPU7"`},
		"too long":       {strings.Repeat("x", maxMatrixText+1), "bytes"},
	} {
		if m, err := ParseMatrix(c.text); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %+v, %v; want %q", name, m, err, c.want)
		}
	}
}

// FuzzParseMatrix: whatever is read, there is an error or a matrix that makes a graph.
func FuzzParseMatrix(f *testing.F) {
	f.Add(pair)
	paths, _ := filepath.Glob("testdata/matrices/*.txt")
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text))
	}
	f.Fuzz(func(t *testing.T, text string) {
		m, err := ParseMatrix(text)
		if err != nil {
			return
		}
		g, err := m.Graph("")
		if err != nil && len(m.GPUs) <= MaxGPUs {
			t.Fatalf("%d GPUs: %v", len(m.GPUs), err)
		}
		if err == nil && g.Len() <= 8 {
			tb := NewTable(g)
			if tb.Ring(g.All()) < 0 || g.Len() > 0 && tb.Best(g.All(), 1) == 0 {
				t.Fatal("no table")
			}
		}
	})
}
