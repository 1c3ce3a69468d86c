package cluster

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-scheduler/lockstep/api/v1alpha1"
	"github.com/lockstep-scheduler/lockstep/gang"
	"github.com/lockstep-scheduler/lockstep/topology"
)

// report is what a node's agent has told of its GPUs.
type report struct {
	graph      *topology.Graph
	generation int64
	at         time.Time // the agent's clock
	healthy    topology.Set
	held       map[types.NamespacedName]topology.Set // whole GPUs, by pod
	shared     topology.Set                          // GPUs of which pods hold parts
	gpus       int
	until      time.Time // after which it is not to be believed
	ready      bool
	rule       topology.Rule
	clique     string // of the NVLink fabric, as NVIDIA's feature discovery labels it
}

// A report is believed for so many heartbeats after it came. Clocks of nodes differ:
// its own time only rules out what is older by staleSlack too, such as the last word
// of an agent that is long gone, read at start.
const (
	missedHeartbeats = 3
	staleSlack       = 5 * time.Minute
)

// readReport reads a NodeTopology. The error says what cannot be made sense of.
func readReport(t *v1alpha1.NodeTopology, now time.Time) (*report, error) {
	s := &t.Status
	patience := missedHeartbeats * time.Duration(s.HeartbeatSeconds) * time.Second
	r := &report{
		generation: s.Generation, at: s.HeartbeatTime.Time, gpus: len(s.GPUs), held: map[types.NamespacedName]topology.Set{},
		until: now.Add(patience), ready: meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionReady),
	}
	if latest := s.HeartbeatTime.Add(patience + staleSlack); latest.Before(r.until) {
		r.until = latest
	}
	if s.NUMAPolicy == v1alpha1.SingleNUMANode {
		r.rule = topology.OneNUMANode
	}
	if s.Fabric != nil {
		r.clique = fmt.Sprintf("%s.%d", s.Fabric.ClusterUUID, s.Fabric.CliqueID)
	}
	if len(s.GPUs) == 0 {
		return r, nil
	}
	place := map[int32]int{}
	for i, g := range s.GPUs {
		if _, twice := place[g.Index]; twice {
			return nil, fmt.Errorf("GPU %d is there twice", g.Index)
		}
		place[g.Index] = i
	}
	var err error
	if r.graph, err = graphOf(s, place); err != nil {
		return nil, err
	}
	for i, g := range s.GPUs {
		// MIG devices are resources of their own, and not whole GPUs.
		if g.Unhealthy == "" && !g.MIG {
			r.healthy |= topology.SetOf(i)
		}
	}
	for _, p := range s.Pods {
		var set topology.Set
		for _, index := range p.GPUs {
			i, ok := place[index]
			if !ok {
				return nil, fmt.Errorf("pod %s/%s holds GPU %d, which is not there", p.Namespace, p.Name, index)
			}
			set |= topology.SetOf(i)
		}
		if p.Shared {
			r.shared |= set
		}
		r.held[types.NamespacedName{Namespace: p.Namespace, Name: p.Name}] |= set
	}
	return r, nil
}

// graphOf makes the graph of a report's GPUs, numbered by their place in it.
func graphOf(s *v1alpha1.NodeTopologyStatus, place map[int32]int) (*topology.Graph, error) {
	numa := make([]int, len(s.GPUs))
	for i, g := range s.GPUs {
		numa[i] = -1
		if g.NUMANode != nil {
			numa[i] = int(*g.NUMANode)
		}
	}
	type pair struct{ a, b int }
	links := map[pair]topology.Link{}
	for _, l := range s.Links {
		a, okA := place[l.A]
		b, okB := place[l.B]
		if !okA || !okB || a == b {
			return nil, fmt.Errorf("link %d-%d: no such GPUs", l.A, l.B)
		}
		path, err := topology.ParsePath(l.Path)
		if err != nil {
			return nil, fmt.Errorf("link %d-%d: %w", l.A, l.B, err)
		}
		links[pair{min(a, b), max(a, b)}] = topology.Link{
			Path: path, NVLinks: int(l.NVLinks), Switched: l.Switched, GBps: float64(l.MBps) / 1000,
		}
	}
	return topology.NewGraph(numa, func(i, j int) topology.Link { return links[pair{i, j}] })
}

// SetNodeTopology takes in what a node's agent reports. The error is for a report
// that cannot be understood: nothing is known of the node then.
func (c *Cluster) SetNodeTopology(t *v1alpha1.NodeTopology, now time.Time) error {
	r, err := readReport(t, now)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.forgetReport(t.Name)
		return fmt.Errorf("the topology of node %s: %w", t.Name, err)
	}
	old := c.reports[t.Name]
	c.reports[t.Name] = r
	confirmed := old != nil && r.at.After(old.at) && c.confirm(t.Name, r)
	if old != nil && old.generation == r.generation && old.ready == r.ready && !confirmed {
		return nil // a heartbeat
	}
	if (old == nil && r.clique != "") || (old != nil && old.clique != r.clique) {
		c.renumber()
	}
	c.forgetGPUs(t.Name)
	if old == nil {
		c.takeAsJudged(t.Name, r)
	}
	c.unjudged[t.Name] = true
	c.freed++
	c.notify()
	return nil
}

// confirm compares what has gone since the last report with a newer one. What is gone
// is no more in it, or a pod of that name is there again. It tells whether a pod that
// came under the name of one that is gone is now in the report itself.
func (c *Cluster) confirm(node string, r *report) bool {
	confirmed := false
	gone := c.gone[node]
	for pod := range gone {
		_, listed := r.held[pod]
		again := c.uses(node, pod)
		if !listed || again {
			delete(gone, pod)
		}
		confirmed = confirmed || listed && again
	}
	return confirmed
}

// uses tells whether a pod of the name is bound to the node and has GPUs.
func (c *Cluster) uses(node string, pod types.NamespacedName) bool {
	n := c.nodes[node]
	if n == nil {
		return false
	}
	for _, p := range n.users {
		if p.Namespace == pod.Namespace && p.Name == pod.Name {
			return true
		}
	}
	return false
}

// takeAsJudged passes over pods that had their GPUs before this replica looked:
// another one has counted them.
func (c *Cluster) takeAsJudged(node string, r *report) {
	n := c.nodes[node]
	if n == nil {
		return
	}
	for uid, p := range n.users {
		if _, listed := r.held[types.NamespacedName{Namespace: p.Namespace, Name: p.Name}]; listed {
			n.judged[uid] = true
		}
	}
}

// DeleteNodeTopology forgets a node's report.
func (c *Cluster) DeleteNodeTopology(node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forgetReport(node)
}

func (c *Cluster) forgetReport(node string) {
	if r := c.reports[node]; r != nil && r.clique != "" {
		c.renumber()
	}
	delete(c.reports, node)
	delete(c.gone, node)
	c.forgetGPUs(node)
}

// reported lists the nodes with a report.
func (c *Cluster) reported() []string {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return slices.Collect(maps.Keys(c.reports))
}

// renumber makes the view build the tree of domains anew.
func (c *Cluster) renumber() {
	c.tree, c.order = nil, nil
	c.generation++
}

// forgetGPUs makes the view compute the node's GPUs anew.
func (c *Cluster) forgetGPUs(node string) {
	if n := c.nodes[node]; n != nil {
		n.gpus = nil
	}
}

// useGPUs notes that a pod on a node has come, changed or gone.
func (c *Cluster) useGPUs(p *Pod) {
	if amountOf(p.requests, c.opts.GPU) > 0 {
		c.forgetGPUs(p.Node)
		c.unjudged[p.Node] = true
	}
}

// leaveGPUs notes that what the node's report says of the pod is over. It does not
// mean another pod that comes under the same name.
func (c *Cluster) leaveGPUs(p *Pod) {
	r := c.reports[p.Node]
	if r == nil {
		return
	}
	name := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
	if _, listed := r.held[name]; !listed {
		return
	}
	if c.gone[p.Node] == nil {
		c.gone[p.Node] = map[types.NamespacedName]bool{}
	}
	c.gone[p.Node][name] = true
}

// keepEnded notes whether there is an object of a pod with GPUs that has ended on
// its node.
func (c *Cluster) keepEnded(p *Pod, is bool) {
	if p.Node == "" || amountOf(p.requests, c.opts.GPU) == 0 {
		return
	}
	name := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
	ended := c.ended[p.Node]
	if is && ended == nil {
		ended = map[types.NamespacedName]bool{}
		c.ended[p.Node] = ended
	}
	if is {
		ended[name] = true
	} else if delete(ended, name); len(ended) == 0 {
		delete(c.ended, p.Node)
	}
	c.forgetGPUs(p.Node)
}

// Scores ranks nodes, 0 to gang.MaxScore, for pods without GPUs that are not planned;
// nodes that are not known get 0.
func (c *Cluster) Scores(nodes []string) []int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.number()
	all, free := make([]int64, len(c.order)), make([]int64, len(c.order))
	for i, n := range c.order {
		all[i] = amountOf(n.capacity, c.opts.GPU)
		free[i] = all[i] - n.used[c.opts.GPU]
	}
	scores := gang.Scores(c.tree, all, free)
	out := make([]int64, len(nodes))
	for i, name := range nodes {
		if n, ok := c.tree.Number(name); ok {
			out[i] = int64(scores[n])
		}
	}
	return out
}

// nodeGPUs gives what is known of the GPUs of each node, in the order of their
// numbers; nil if nothing is known of any.
func (c *Cluster) nodeGPUs(now time.Time) []gang.NodeGPUs {
	if len(c.reports) == 0 {
		return nil
	}
	out := make([]gang.NodeGPUs, len(c.order))
	known := false
	for i, n := range c.order {
		r := c.reports[n.node.Name]
		if r == nil || !now.Before(r.until) {
			continue
		}
		if n.gpus == nil {
			gpus := c.readGPUs(n, r)
			n.gpus = &gpus
		}
		out[i] = *n.gpus
		known = known || out[i].Table != nil
	}
	if !known {
		return nil
	}
	return out
}

// readGPUs finds which of the node's GPUs are free by the report, and which pods have
// come since. A pod of the report that the watch has not shown yet counts as there.
func (c *Cluster) readGPUs(n *nodeState, r *report) gang.NodeGPUs {
	// More GPUs than there are: they are shared by replicas, and none is anybody's.
	if !r.ready || r.graph == nil || amountOf(n.capacity, c.opts.GPU) > int64(r.gpus) {
		return gang.NodeGPUs{}
	}
	out := gang.NodeGPUs{Table: c.tables.Table(r.graph), Free: r.healthy &^ r.shared, Rule: r.rule}
	gone, ended := c.gone[n.node.Name], c.ended[n.node.Name]
	for pod, set := range r.held {
		if !gone[pod] && !ended[pod] {
			out.Free &^= set
		}
	}
	users := slices.SortedFunc(maps.Values(n.users), (*Pod).byAge)
	for _, p := range users {
		name := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
		if _, listed := r.held[name]; listed && !gone[name] && !ended[name] {
			continue
		}
		k := int(amountOf(p.requests, c.opts.GPU))
		if k <= out.Free.Len() {
			out.Taken = append(out.Taken, k)
		}
	}
	slices.SortStableFunc(out.Taken, func(a, b int) int { return cmp.Compare(b, a) })
	return out
}
