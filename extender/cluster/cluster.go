// Package cluster is the only reader of the API server: it follows nodes and
// pods and keeps, incrementally, what the planner needs to know of them.
package cluster

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-scheduler/lockstep/gang"
	"github.com/lockstep-scheduler/lockstep/topology"
)

// Options of a Cluster.
type Options struct {
	// GPU is the extended resource that counts as a GPU.
	GPU string
	// Levels of the domain tree, from wide to narrow.
	Levels []topology.Level
}

// Cluster is the state of nodes and pods as far as the API server's watch has
// told us. All methods are safe for concurrent use; none does I/O.
type Cluster struct {
	opts    Options
	changed chan struct{}

	mu    sync.RWMutex
	nodes map[string]*nodeState
	pods  map[types.UID]*Pod
	gangs map[gang.Key]*members
	// orphans are bound pods whose node is not known yet, or no longer.
	orphans map[string]map[types.UID]*Pod
	classes map[string]*class
	// reports are the nodes' agents' by node; gone are pods that have left a node
	// since its report; ended are those with GPUs that have, too, but whose objects
	// stay: some kubelets list them until these are deleted.
	reports map[string]*report
	gone    map[string]map[types.NamespacedName]bool
	ended   map[string]map[types.NamespacedName]bool
	// unjudged are nodes of which a report, or a pod with GPUs, is new.
	unjudged map[string]bool
	tables   topology.Catalog

	version uint64 // highest resourceVersion of a pod seen
	freed   uint64 // grows whenever there may be more room than before

	// Rebuilt when nil: order and tree on a change of names or labels.
	order      []*nodeState // by number in tree
	tree       *topology.Tree
	generation uint64 // of everything that decides eligibility
	// offered are the resources that nodes have; rebuilt when nil.
	offered map[string]bool
}

// members are the pods of a gang, and how often they have changed.
type members struct {
	pods    map[types.UID]*Pod
	changes uint64
}

// New makes an empty Cluster.
func New(opts Options) *Cluster {
	return &Cluster{
		opts: opts, changed: make(chan struct{}, 1),
		nodes: map[string]*nodeState{}, pods: map[types.UID]*Pod{}, gangs: map[gang.Key]*members{},
		orphans: map[string]map[types.UID]*Pod{}, classes: map[string]*class{},
		reports: map[string]*report{}, gone: map[string]map[types.NamespacedName]bool{},
		ended: map[string]map[types.NamespacedName]bool{}, unjudged: map[string]bool{},
	}
}

// Changed receives after changes that a planner may care about; changes in quick
// succession arrive as one.
func (c *Cluster) Changed() <-chan struct{} { return c.changed }

func (c *Cluster) notify() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// SetNode takes in a new or changed node.
func (c *Cluster) SetNode(n *corev1.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.nodes[n.Name]
	if old == nil {
		state := newNodeState(n)
		for _, p := range c.orphans[n.Name] {
			state.take(p, c.opts.GPU)
		}
		delete(c.orphans, n.Name)
		c.nodes[n.Name] = state
		c.tree, c.order = nil, nil
	} else {
		if sameForPlanning(old.node, n) {
			old.node = n
			return
		}
		if !sameDomains(old.node, n) {
			c.tree, c.order = nil, nil
		}
		old.node, old.capacity, old.gpus = n, capacityOf(n.Status.Allocatable), nil
	}
	c.generation++
	c.freed++
	c.offered = nil
	c.notify()
}

// DeleteNode forgets a node; its pods stay known.
func (c *Cluster) DeleteNode(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.nodes[name] == nil {
		return
	}
	delete(c.nodes, name)
	for uid, p := range c.pods {
		if p.Node == name && p.occupies {
			c.orphan(name, uid, p)
		}
	}
	c.tree, c.order, c.offered = nil, nil, nil
	c.generation++
	c.notify()
}

func (c *Cluster) orphan(node string, uid types.UID, p *Pod) {
	if c.orphans[node] == nil {
		c.orphans[node] = map[types.UID]*Pod{}
	}
	c.orphans[node][uid] = p
}

// SetPod takes in a new or changed pod.
func (c *Cluster) SetPod(pod *corev1.Pod) {
	p := readPod(pod, corev1.ResourceName(c.opts.GPU))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.note(pod.ResourceVersion)
	c.replace(c.pods[pod.UID], p)
}

// DeletePod forgets a pod that was gone at the resource version.
func (c *Cluster) DeletePod(uid types.UID, resourceVersion string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.note(resourceVersion)
	c.replace(c.pods[uid], nil)
}

// see notes how far the watch of pods has come. Resource versions of one
// resource are comparable as numbers (KEP-5504).
func (c *Cluster) see(resourceVersion string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.note(resourceVersion)
}

func (c *Cluster) note(resourceVersion string) {
	if v, err := strconv.ParseUint(resourceVersion, 10, 64); err == nil {
		c.version = max(c.version, v)
	}
}

func (c *Cluster) nodeNames() []string {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return slices.Collect(maps.Keys(c.nodes))
}

func (c *Cluster) podUIDs() []types.UID {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return slices.Collect(maps.Keys(c.pods))
}

// replace puts p (nil: nothing) in the place of old (nil: nothing).
func (c *Cluster) replace(old, p *Pod) {
	if old != nil {
		c.remove(old)
	}
	if p != nil {
		c.add(p)
	}
	left := old.occupying() && !p.occupying()
	if old.ours() || p.ours() || left {
		c.notify()
	}
	if old != nil && !p.occupying() {
		c.leaveGPUs(old)
	}
	if left {
		c.freed++
		if n := c.nodes[old.Node]; n != nil {
			delete(n.judged, old.UID)
		}
	}
}

func (c *Cluster) add(p *Pod) {
	c.pods[p.UID] = p
	if p.Key != (gang.Key{}) {
		g := c.gangs[p.Key]
		if g == nil {
			// The count goes on from the clock of all pods, so that a gang made
			// again under its old name does not look unchanged.
			g = &members{pods: map[types.UID]*Pod{}, changes: c.version}
			c.gangs[p.Key] = g
		}
		g.pods[p.UID] = p
		g.changes++
	}
	if !p.occupies {
		c.keepEnded(p, true)
		return
	}
	if n := c.nodes[p.Node]; n != nil {
		n.take(p, c.opts.GPU)
	} else {
		c.orphan(p.Node, p.UID, p)
	}
	c.useGPUs(p)
}

func (c *Cluster) remove(p *Pod) {
	delete(c.pods, p.UID)
	if g := c.gangs[p.Key]; g != nil {
		delete(g.pods, p.UID)
		g.changes++
		if len(g.pods) == 0 {
			delete(c.gangs, p.Key)
		}
	}
	if p.class != nil {
		if p.class.pods--; p.class.pods == 0 {
			delete(c.classes, p.class.key)
		}
	}
	if !p.occupies {
		c.keepEnded(p, false)
		return
	}
	c.useGPUs(p)
	if n := c.nodes[p.Node]; n != nil {
		n.leave(p)
	} else if delete(c.orphans[p.Node], p.UID); len(c.orphans[p.Node]) == 0 {
		delete(c.orphans, p.Node)
	}
}

// classOf reads the class of a pending pod of ours once.
func (c *Cluster) classOf(p *Pod) *class {
	if p.class == nil {
		p.class = c.shared(newClass(p.object, p.requests, p.links))
		c.classes[p.class.key] = p.class
		p.class.pods++
	}
	return p.class
}

// shared gives the class of the same key that is known already, else this one.
func (c *Cluster) shared(fresh *class) *class {
	if known := c.classes[fresh.key]; known != nil {
		return known
	}
	return fresh
}

// Pod gives what is known of a pod.
func (c *Cluster) Pod(uid types.UID) (*Pod, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	p, ok := c.pods[uid]
	return p, ok
}

// Members gives the pods of a gang, oldest first.
func (c *Cluster) Members(key gang.Key) []*Pod {
	c.mu.RLock()
	defer c.mu.RUnlock()
	g := c.gangs[key]
	if g == nil {
		return nil
	}
	return slices.SortedFunc(maps.Values(g.pods), (*Pod).byAge)
}

// Version is the highest resourceVersion of a pod seen so far.
func (c *Cluster) Version() uint64 {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.version
}

// Unusable says why the pending pod may not go to the node, or "".
func (c *Cluster) Unusable(uid types.UID, node string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.nodes[node]
	if n == nil {
		return "deleted"
	}
	p := c.pods[uid]
	if p == nil || p.object == nil {
		return ""
	}
	return c.classOf(p).excludes(n.node)
}

// invalid says, by key and value, why the gang of these pods cannot be
// scheduled as written, or "". Pods are in the order of their age.
func (c *Cluster) invalid(members []*Pod) string {
	for _, p := range members {
		if p.bad != nil && p.Phase == gang.Pending {
			return fmt.Sprintf("pod %s: %s", p.Name, p.bad)
		}
	}
	for _, p := range members {
		if p.membership == nil || p.Phase != gang.Pending {
			continue
		}
		for _, level := range []string{p.membership.required, p.membership.preferred} {
			if level != "" && !c.knowsLevel(level) {
				return fmt.Sprintf("pod %s: topology level %q is not known; the levels are %s", p.Name, level, strings.Join(c.levels(), ", "))
			}
		}
	}
	return ""
}

func (c *Cluster) knowsLevel(name string) bool { return slices.Contains(c.levels(), name) }

func (c *Cluster) levels() []string {
	out := []string{topology.Cluster}
	for _, l := range c.opts.Levels {
		out = append(out, l.Name)
	}
	return append(out, topology.Host)
}

// byRole is the order of gang.Gang.Members.
func byRole(a, b gang.Member) int {
	return cmp.Or(cmp.Compare(a.Role, b.Role), cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
}

// Ours reads from a pod which gang it belongs to (zero: none of ours), whether
// that is a gang of one, and what is wrong with what it says, if anything.
func (c *Cluster) Ours(pod *corev1.Pod) (key gang.Key, single bool, invalid string) {
	p, ok := c.Pod(pod.UID)
	if !ok {
		p = readPod(pod, corev1.ResourceName(c.opts.GPU))
	}
	if p.bad != nil {
		invalid = p.bad.String()
	}
	return p.Key, p.Single, invalid
}

// Breaks tells whether a gang would be left with some but fewer members than its
// minimum if it lost these pods.
func (c *Cluster) Breaks(victims []types.UID) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	lost := map[gang.Key]int{}
	for _, uid := range victims {
		if p := c.pods[uid]; p != nil && p.Phase == gang.Bound && !p.Single {
			lost[p.Key]++
		}
	}
	delete(lost, gang.Key{})
	for key, n := range lost {
		bound, done := 0, 0
		var stated []*Pod
		for _, p := range c.gangs[key].pods {
			switch p.Phase {
			case gang.Bound:
				bound++
			case gang.Succeeded:
				done++
			}
			if p.membership != nil && p.bad == nil {
				stated = append(stated, p)
			}
		}
		if bound > n && len(stated) > 0 && bound-n+done < specOf(stated).MinMember {
			return true
		}
	}
	return false
}
