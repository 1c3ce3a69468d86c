package topology

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// matrices are captures of real nodes, each with its source.
func matrices(t testing.TB) map[string]*Matrix {
	t.Helper()
	paths, err := filepath.Glob("testdata/matrices/*.txt")
	if err != nil || len(paths) == 0 {
		t.Fatal("no matrices", err)
	}
	out := map[string]*Matrix{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		m, err := ParseMatrix(string(text))
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		out[strings.TrimSuffix(filepath.Base(path), ".txt")] = m
	}
	return out
}

func table(t testing.TB, m *Matrix, model string) *Table {
	t.Helper()
	g, err := m.Graph(model)
	if err != nil {
		t.Fatal(err)
	}
	return NewTable(g)
}

// refRing tries every order of the GPUs.
func refRing(g *Graph, s Set) float64 {
	gpus := s.GPUs()
	if len(gpus) < 2 {
		return 0
	}
	best := 0.0
	var permute func(order, rest []int)
	permute = func(order, rest []int) {
		if len(rest) == 0 {
			slowest := g.Link(order[len(order)-1], order[0]).GBps
			for i := 1; i < len(order); i++ {
				slowest = min(slowest, g.Link(order[i-1], order[i]).GBps)
			}
			best = max(best, slowest)
			return
		}
		for i := range rest {
			others := slices.Delete(slices.Clone(rest), i, i+1)
			permute(append(slices.Clone(order), rest[i]), others)
		}
	}
	permute(gpus[:1], gpus[1:])
	return best
}

// refPredict follows the words of the device plugin's policy: every division of the
// free GPUs, padded, into sets of k, of which at most one has padding.
func refPredict(g *Graph, free Set, k int) []Set {
	if k == 1 {
		var out []Set
		for _, i := range free.GPUs() {
			out = append(out, SetOf(i))
		}
		return out
	}
	score := func(s Set) int32 {
		sum := int32(0)
		gpus := s.GPUs()
		for i, a := range gpus {
			for _, b := range gpus[i+1:] {
				sum += g.pairScore(a, b)
			}
		}
		return sum
	}
	padding := (k - free.Len()%k) % k
	most, out := int32(-1), map[Set]bool{}
	var divide func(parts []Set, rest Set, padded bool)
	divide = func(parts []Set, rest Set, padded bool) {
		if rest == 0 {
			sum := int32(0)
			for _, s := range parts {
				sum += score(s)
			}
			if sum < most {
				return
			}
			if sum > most {
				most = sum
				clear(out)
			}
			highest := int32(-1)
			for _, s := range parts {
				if s.Len() == k {
					highest = max(highest, score(s))
				}
			}
			for _, s := range parts {
				if s.Len() == k && score(s) == highest {
					out[s] = true
				}
			}
			return
		}
		// Every subset with the lowest GPU that is left.
		first := SetOf(rest.GPUs()[0])
		for s := rest; s != 0; s = (s - 1) & rest {
			switch full := s.Len() == k; {
			case s&first == 0:
			case full:
				divide(append(slices.Clone(parts), s), rest&^s, padded)
			case !padded && padding > 0 && s.Len() == k-padding:
				divide(append(slices.Clone(parts), s), rest&^s, true)
			}
		}
	}
	divide(nil, free, false)
	sets := make([]Set, 0, len(out))
	for s := range out {
		sets = append(sets, s)
	}
	slices.Sort(sets)
	return sets
}

// refWorth divides in every way, for pairs, quads and so on.
func refWorth(g *Graph, free Set) float64 {
	var pack func(rest Set, k int) float64
	pack = func(rest Set, k int) float64 {
		if rest == 0 {
			return 0
		}
		first := SetOf(rest.GPUs()[0])
		best := pack(rest&^first, k)
		for s := rest; s != 0; s = (s - 1) & rest {
			if s&first != 0 && s.Len() == k {
				best = max(best, refRing(g, s)+pack(rest&^s, k))
			}
		}
		return best
	}
	sum := 0.0
	for k := 2; k <= g.Len(); k *= 2 {
		sum += pack(free, k)
	}
	return sum
}

// near allows for rings being kept in 32 bits.
func near(a, b float64) bool { return max(a-b, b-a) <= 1e-4*max(1, a, b) }

// check compares what the table says of these free GPUs with the references.
func check(t *testing.T, tb *Table, free Set, k int) {
	t.Helper()
	sets := slices.Sorted(slices.Values(tb.Predict(free, k, ByLinks).Sets))
	if want := refPredict(tb.Graph, free, k); !slices.Equal(sets, want) {
		t.Errorf("free %v, %d of them: predicted %v, want %v", free.GPUs(), k, lists(sets), lists(want))
	}
	best := tb.Best(free, k)
	if best.Len() != k || best&^free != 0 {
		t.Fatalf("free %v, %d of them: chose %v", free.GPUs(), k, best.GPUs())
	}
	for s := free; s != 0; s = (s - 1) & free {
		if s.Len() != k {
			continue
		}
		if a, b := tb.Ring(s), tb.Ring(best); a > b || a == b && tb.Worth(free&^s) > tb.Worth(free&^best) {
			t.Fatalf("free %v: %v is better than %v", free.GPUs(), s.GPUs(), best.GPUs())
		}
	}
}

func lists(sets []Set) [][]int {
	out := make([][]int, len(sets))
	for i, s := range sets {
		out[i] = s.GPUs()
	}
	return out
}

// TestTablesAgainstReferences: exact for every free set and number on every matrix.
func TestTablesAgainstReferences(t *testing.T) {
	for name, m := range matrices(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tb := table(t, m, "")
			for s := Set(0); s <= tb.All(); s++ {
				if testing.Short() && s%7 != 0 {
					continue
				}
				if a, b := tb.Ring(s), refRing(tb.Graph, s); !near(a, b) {
					t.Errorf("ring of %v: got %v, want %v", s.GPUs(), a, b)
				}
				if a, b := tb.Worth(s), refWorth(tb.Graph, s); s.Len() <= 6 && !near(a, b) {
					t.Errorf("worth of %v: got %v, want %v", s.GPUs(), a, b)
				}
				for k := 1; k <= s.Len(); k++ {
					check(t, tb, s, k)
				}
			}
		})
	}
}

// TestTablesOfRandomGraphs: the same on graphs that nobody built, up to 16 GPUs.
func TestTablesOfRandomGraphs(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 0))
		g := randomGraph(rng, 2+rng.IntN(6))
		tb := NewTable(g)
		for range 40 {
			free := Set(rng.Uint32()) & g.All()
			if a, b := tb.Ring(free), refRing(g, free); !near(a, b) {
				t.Fatalf("seed %d: ring of %v: got %v, want %v", seed, free.GPUs(), a, b)
			}
			if a, b := tb.Worth(free), refWorth(g, free); !near(a, b) {
				t.Fatalf("seed %d: worth of %v: got %v, want %v", seed, free.GPUs(), a, b)
			}
			if n := free.Len(); n > 0 {
				check(t, tb, free, 1+rng.IntN(n))
			}
		}
	}
}

func TestTablesOfSixteen(t *testing.T) {
	rng := rand.New(rand.NewPCG(16, 0))
	g := randomGraph(rng, 16)
	tb := NewTable(g)
	for range 30 {
		free := Set(rng.Uint32()) & g.All()
		for free.Len() > 8 {
			free &= Set(rng.Uint32())
		}
		if a, b := tb.Ring(free), refRing(g, free); !near(a, b) {
			t.Fatalf("ring of %v: got %v, want %v", free.GPUs(), a, b)
		}
		if n := free.Len(); n > 0 {
			check(t, tb, free, 1+rng.IntN(n))
		}
	}
	for k := 1; k <= 16; k++ {
		if s := tb.Best(g.All(), k); s.Len() != k {
			t.Errorf("%d of 16: chose %v", k, s.GPUs())
		}
		if o := tb.Predict(g.All(), k, ByLinks); len(o.Sets) == 0 {
			t.Errorf("%d of 16: nothing predicted", k)
		}
	}
}

func randomGraph(rng *rand.Rand, n int) *Graph {
	numa := make([]int, n)
	for i := range numa {
		numa[i] = rng.IntN(3) - 1
	}
	g, err := NewGraph(numa, func(int, int) Link {
		l := Link{Path: Path(rng.IntN(len(pathNames))), GBps: float64(1 + rng.IntN(5))}
		if rng.IntN(2) == 0 {
			l.NVLinks, l.Switched = 1+rng.IntN(3), rng.IntN(4) == 0
			l.GBps = float64(l.NVLinks) * 25
		}
		return l
	})
	if err != nil {
		panic(err)
	}
	return g
}

// refFit follows every way in which the device plugin may pick.
func refFit(tb *Table, free Set, k int, want Want) int {
	least := -1
	for _, s := range refPredict(tb.Graph, free, k) {
		n := 0
		if tb.Ring(s) >= want.Ring && tb.Meets(s, want.Requirement) {
			n = 1
			if free.Len()-k >= k {
				n += refFit(tb, free&^s, k, want)
			}
		}
		if least < 0 || n < least {
			least = n
		}
	}
	return max(least, 0)
}

func TestFitAgainstReference(t *testing.T) {
	for name, m := range matrices(t) {
		if testing.Short() && len(m.GPUs) > 4 {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tb := table(t, m, "")
			rng := rand.New(rand.NewPCG(1, 0))
			for range 60 {
				free := Set(rng.Uint32()) & tb.All()
				if free == 0 {
					continue
				}
				k := 1 + rng.IntN(free.Len())
				rings := tb.Rings(k)
				want := Want{Ring: rings[rng.IntN(len(rings))], Requirement: Requirement{Tier: Tier(rng.IntN(4)), OneNUMA: rng.IntN(4) == 0}}
				if got, ref := tb.Fit(free, k, ByLinks, want), refFit(tb, free, k, want); got != ref {
					t.Errorf("free %v, %d each, %+v: fit %d, want %d", free.GPUs(), k, want, got, ref)
				}
			}
		})
	}
}

// TestAfterAndLoss: what is left is the least of what may be left, and the loss lies
// between the least and the most.
func TestAfterAndLoss(t *testing.T) {
	for _, m := range matrices(t) {
		tb := table(t, m, "")
		for free := Set(1); free <= tb.All(); free++ {
			for k := 1; k <= free.Len(); k++ {
				left := tb.After(free, k, ByLinks)
				least, most := tb.Worth(free), 0.0
				for _, s := range tb.Predict(free, k, ByLinks).Sets {
					least, most = min(least, tb.Worth(free&^s)), max(most, tb.Worth(free&^s))
				}
				loss := tb.Loss(free, k, ByLinks)
				if left.Len() != free.Len()-k || tb.Worth(left) != least || loss > tb.Worth(free)-least+0.01 || loss < tb.Worth(free)-most-0.01 {
					t.Fatalf("%d of %v: %v is left, loss %v of %v", k, free.GPUs(), left.GPUs(), loss, tb.Worth(free))
				}
			}
		}
	}
}

func TestFitOnLargeNodes(t *testing.T) {
	g, err := NewGraph(make([]int, 16), func(int, int) Link { return Link{Path: PathNode, NVLinks: 6, Switched: true, GBps: 150} })
	if err != nil {
		t.Fatal(err)
	}
	tb := NewTable(g)
	want := Want{Ring: 150, Requirement: Requirement{Tier: TierNVSwitch}}
	if n := tb.Fit(g.All(), 4, ByLinks, want); n != 4 {
		t.Errorf("%d quads", n)
	}
	if n := tb.Fit(g.All(), 4, ByLinks, Want{Ring: 151}); n != 0 {
		t.Errorf("%d quads of what there is not", n)
	}
	irregular := NewTable(randomGraph(rand.New(rand.NewPCG(3, 0)), 12))
	if n := irregular.Fit(irregular.All(), 4, ByLinks, Want{Ring: 1}); n < 1 || n > 3 {
		t.Errorf("%d quads", n)
	}
}

func TestDGX1VQuads(t *testing.T) {
	tb := table(t, matrices(t)["dgx1-v100-8x-hybrid-cube-mesh"], "Tesla V100-SXM2-32GB")
	// No four GPUs have a ring of double links; eight quads have one of NVLinks alone.
	full, quads := 25.8, 0
	each(tb.All(), 4, func(s Set) {
		if near(tb.Ring(s), full) {
			quads++
		}
	})
	if quads != 8 {
		t.Errorf("%d quads have a ring of NVLinks", quads)
	}
	for free := Set(0); free <= tb.All(); free++ {
		some := false
		each(free, 4, func(s Set) { some = some || near(tb.Ring(s), full) })
		if some && !near(tb.Ring(tb.Best(free, 4)), full) {
			t.Errorf("free %v: chose %v", free.GPUs(), tb.Best(free, 4).GPUs())
		}
	}
}

func TestSwitchesAreTold(t *testing.T) {
	all := matrices(t)
	for name, want := range map[string]Tier{
		"a100-8x-sxm-nv12": TierNVSwitch, "h100-8x-sxm-nv18": TierNVSwitch, "gb200-4x-nvl72-tray": TierNVSwitch,
		"h100-4x-nv6-nvlink-mesh": TierNVLink, "polaris-hgx-a100-4x-nv4": TierNVLink, "pcie-4x-nv12-pairs-4numa": TierAny,
		"dgx1-v100-8x-hybrid-cube-mesh": TierNVLink, "4x-pcie-phb": TierPCIe, "rtx4090-8x-pcie-all-sys": TierAny,
	} {
		tb := table(t, all[name], "")
		for tier := TierPCIe; tier <= TierNVSwitch; tier++ {
			if got := tb.Meets(tb.All(), Requirement{Tier: tier}); got != (tier <= want) {
				t.Errorf("%s: all GPUs meet tier %d: %t", name, tier, got)
			}
		}
	}
}

func TestRequirements(t *testing.T) {
	tb := table(t, matrices(t)["pcie-4x-nv12-pairs-4numa"], "")
	for _, c := range []struct {
		gpus []int
		ask  string
		want bool
	}{
		{[]int{0, 1}, "nvlink", true},
		{[]int{0, 2}, "nvlink", false},
		{[]int{0, 1}, "numa", false}, // linked, and on two NUMA nodes
		{[]int{0, 1}, "nvswitch", false},
		{[]int{0, 1}, "pcie", true}, // better than asked
		{[]int{0, 2}, "pcie", false},
		{[]int{3}, "nvswitch", true}, // one GPU has nobody to talk to
	} {
		r, err := ParseRequirement(c.ask)
		if err != nil || r.String() != c.ask {
			t.Fatal(r, err)
		}
		if got := tb.Meets(SetOf(c.gpus...), r); got != c.want {
			t.Errorf("%v %s: got %t", c.gpus, c.ask, got)
		}
	}
	if _, err := ParseRequirement("NVLink"); err == nil || !strings.Contains(err.Error(), `"NVLink"`) {
		t.Errorf("got %v", err)
	}
}

// TestCase_D1_LinkedPairsAreFoundAndForeseen: of two free GPUs without a link
// between them, the table does not say that they have one, and where a linked pair
// is free the device plugin is known to hand it out.
func TestCase_D1_LinkedPairsAreFoundAndForeseen(t *testing.T) {
	tb := table(t, matrices(t)["pcie-8x-nv12-pairs"], "NVIDIA A100-PCIE-40GB")
	nvlink := Requirement{Tier: TierNVLink}
	if o := tb.Predict(SetOf(0, 1), 2, ByLinks); tb.Meets(o.Sets[0], nvlink) || o.Best >= 25 {
		t.Errorf("free 0 and 1: %+v", o)
	}
	if o := tb.Predict(SetOf(0, 2), 2, ByLinks); !tb.Meets(o.Sets[0], nvlink) || o.Worst < 25 {
		t.Errorf("free 0 and 2: %+v", o)
	}
	pairs := []Set{SetOf(0, 2), SetOf(1, 3), SetOf(4, 5), SetOf(6, 7)}
	for free := Set(0); free <= tb.All(); free++ {
		if !slices.ContainsFunc(pairs, func(p Set) bool { return free&p == p }) {
			continue
		}
		if best := tb.Best(free, 2); !slices.Contains(pairs, best) {
			t.Errorf("free %v: chose %v", free.GPUs(), best.GPUs())
		}
		for _, s := range tb.Predict(free, 2, ByLinks).Sets {
			if !slices.Contains(pairs, s) {
				t.Errorf("free %v: the plugin may pick %v", free.GPUs(), s.GPUs())
			}
		}
	}
}

// TestCase_D2_OddGPUsAreWorthLess: a GPU whose peer is in use is taken before one
// of a whole pair.
func TestCase_D2_OddGPUsAreWorthLess(t *testing.T) {
	tb := table(t, matrices(t)["pcie-8x-nv12-pairs"], "")
	free := tb.All() &^ SetOf(2) // 0 has lost its peer
	for _, i := range free.GPUs() {
		odd := tb.Worth(free) - tb.Worth(free&^SetOf(0))
		if whole := tb.Worth(free) - tb.Worth(free&^SetOf(i)); i != 0 && whole <= odd {
			t.Errorf("taking %d costs %v, taking 0 costs %v", i, whole, odd)
		}
	}
	if best := tb.Best(free, 1); best != SetOf(0) {
		t.Errorf("chose %v", best.GPUs())
	}
}

func TestLoosePluginsMayPickAnything(t *testing.T) {
	tb := table(t, matrices(t)["pcie-8x-nv12-pairs"], "")
	o := tb.Predict(tb.All(), 2, AnySet)
	if len(o.Sets) != 28 || o.Worst >= o.Expected || o.Expected >= o.Best {
		t.Errorf("got %d sets, rings %v %v %v", len(o.Sets), o.Worst, o.Expected, o.Best)
	}
	if o := tb.Predict(SetOf(1, 2), 3, ByLinks); len(o.Sets) != 0 {
		t.Errorf("3 of 2: %v", o)
	}
}

// TestOneNUMANode: kubelet's topology manager keeps a pod's GPUs on one NUMA node, so
// that fewer pods fit than there are GPUs for.
func TestOneNUMANode(t *testing.T) {
	all := matrices(t)
	tb := table(t, all["a100-8x-sxm-nv12"], "")
	free := SetOf(0, 1, 2, 4, 5, 6)
	for k, want := range map[int]int{1: 6, 2: 2, 3: 2, 4: 0} {
		if got := tb.Fit(free, k, OneNUMANode, Want{}); got != want {
			t.Errorf("%d each: %d fit, want %d", k, got, want)
		}
	}
	for _, s := range tb.Predict(free, 2, OneNUMANode).Sets {
		if !tb.oneNUMA(s) {
			t.Errorf("%v are on two nodes", s.GPUs())
		}
	}
	if sets := tb.Predict(free, 4, OneNUMANode).Sets; len(sets) > 0 {
		t.Errorf("four of three and three: %v", lists(sets))
	}
	if left := tb.After(free, 4, OneNUMANode); left.Len() != 2 {
		t.Errorf("after a pod that is there against the rule: %v", left.GPUs())
	}
	unknown := table(t, all["a100-2x-in-container-no-affinity"], "")
	if got := unknown.Fit(SetOf(0, 1), 2, OneNUMANode, Want{}); got != 1 {
		t.Errorf("where NUMA nodes are not known: %d fit", got)
	}
}

func TestCatalogSharesTables(t *testing.T) {
	var c Catalog
	all := matrices(t)
	a, err := all["h100-8x-sxm-nv18"].Graph("NVIDIA H100 80GB HBM3")
	if err != nil {
		t.Fatal(err)
	}
	b, err := all["h100-8x-sxm-nv18-b"].Graph("NVIDIA H100 80GB HBM3")
	if err != nil {
		t.Fatal(err)
	}
	other, err := all["a100-8x-sxm-nv12"].Graph("NVIDIA A100-SXM4-80GB")
	if err != nil {
		t.Fatal(err)
	}
	if c.Table(a) != c.Table(b) {
		t.Error("two tables for the same graph")
	}
	if c.Table(a) == c.Table(other) {
		t.Error("one table for different graphs")
	}
}

func TestTooManyGPUs(t *testing.T) {
	if _, err := NewGraph(make([]int, 17), func(int, int) Link { return Link{} }); err == nil || !strings.Contains(err.Error(), "17 GPUs") {
		t.Errorf("got %v", err)
	}
}

func TestLookupsDoNotAllocate(t *testing.T) {
	tb := table(t, matrices(t)["dgx1-v100-8x-hybrid-cube-mesh"], "")
	free := SetOf(0, 1, 2, 5, 6, 7)
	look := func() {
		tb.Ring(free)
		tb.Predict(free, 2, ByLinks)
		tb.Best(free, 2)
		tb.Worth(free)
	}
	look()
	if n := testing.AllocsPerRun(100, look); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkNewTable(b *testing.B) {
	for _, n := range []int{8, 16} {
		g := randomGraph(rand.New(rand.NewPCG(1, 0)), n)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				NewTable(g)
			}
		})
	}
}

func BenchmarkLookup(b *testing.B) {
	tb := NewTable(randomGraph(rand.New(rand.NewPCG(1, 0)), 8))
	b.ReportAllocs()
	for b.Loop() {
		tb.Predict(0b10110111, 4, ByLinks)
		tb.Worth(0b10110111)
	}
}
