package cluster

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-scheduler/lockstep/gang"
	"github.com/lockstep-scheduler/lockstep/topology"
)

// Hold is room that is reserved on a node: for the pod, or, with an empty UID,
// for one that is still to come.
type Hold struct {
	UID  types.UID
	Node string
}

// Claim is a number of holds that take the same.
type Claim struct {
	Requests map[string]int64
	Holds    []Hold
}

// Pending is a gang that wants something: members without a place, or members it
// has lost.
type Pending struct {
	gang.Gang
	// Foreign counts, by gate, the members that wait for gates of others. They
	// are not among Members yet.
	Foreign []gang.Count
	// Changes grows with every change to a pod of the gang.
	Changes uint64
	// Unpinned gives, for members that we pinned and that have no hold, their class
	// without the pin.
	Unpinned map[string]gang.ClassID
}

// View is the cluster at one moment, as a round of the controller sees it.
type View struct {
	Snapshot *gang.Snapshot
	// Gangs are those that want something, by key.
	Gangs []*Pending
	// Overcommitted nodes have less than their bound pods and holds take.
	Overcommitted map[string]bool
	// Version is the highest resourceVersion of a pod that went into the view.
	Version uint64
	// Freed grows whenever there may be more room than before.
	Freed uint64

	classes map[*class]gang.ClassID
	index   map[string]int // of resources
	seated  map[types.UID]bool
}

// View takes a snapshot with the claims' room taken. A hold whose pod is bound
// counts once, as the bound pod. Members with a hold have no class: they are
// placed already, and there may be thousands. now says which reports of nodes are
// too old.
func (c *Cluster) View(claims []Claim, now time.Time) *View {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.number()
	v := &View{Version: c.version, Freed: c.freed, Overcommitted: map[string]bool{}, classes: map[*class]gang.ClassID{}, seated: map[types.UID]bool{}}
	for _, claim := range claims {
		for _, h := range claim.Holds {
			v.seated[h.UID] = true
		}
	}
	pending := c.pending()
	v.Snapshot = &gang.Snapshot{Tree: c.tree, GPU: -1}
	v.index = c.resources(pending, claims)
	v.Snapshot.Resources = slices.Sorted(maps.Keys(v.index))
	for i, r := range v.Snapshot.Resources {
		v.index[r] = i
		if r == c.opts.GPU {
			v.Snapshot.GPU = i
		}
	}
	v.Snapshot.NodeGPUs = c.nodeGPUs(now)
	c.fill(v, claims)
	for _, members := range pending {
		v.Gangs = append(v.Gangs, c.assemble(v, members))
	}
	slices.SortFunc(v.Gangs, func(a, b *Pending) int {
		return cmp.Or(cmp.Compare(a.Key.Namespace, b.Key.Namespace), cmp.Compare(a.Key.Name, b.Key.Name))
	})
	return v
}

// number builds the tree and the order of the nodes if a change voided them.
func (c *Cluster) number() {
	if c.tree != nil {
		return
	}
	list := make([]topology.Node, 0, len(c.nodes))
	for name, n := range c.nodes {
		list = append(list, topology.Node{Name: name, Labels: c.labels(n.node)})
	}
	c.tree = topology.Build(c.opts.Levels, list)
	c.order = make([]*nodeState, c.tree.Len())
	for i := range c.order {
		c.order[i] = c.nodes[c.tree.Name(i)]
	}
}

// labels are the node's, with the clique that its agent reports where there is no
// label of it.
func (c *Cluster) labels(n *corev1.Node) map[string]string {
	r := c.reports[n.Name]
	if r == nil || r.clique == "" || n.Labels[cliqueLabel] != "" {
		return n.Labels
	}
	out := maps.Clone(n.Labels)
	if out == nil {
		out = map[string]string{}
	}
	out[cliqueLabel] = r.clique
	return out
}

// cliqueLabel is set by NVIDIA's GPU feature discovery, where that runs.
const cliqueLabel = "nvidia.com/gpu.clique"

// pending finds the gangs that want something: each as its pods, oldest first.
func (c *Cluster) pending() [][]*Pod {
	var out [][]*Pod
	for _, g := range c.gangs {
		if g.wants() {
			out = append(out, slices.SortedFunc(maps.Values(g.pods), (*Pod).byAge))
		}
	}
	return out
}

// wants tells whether the gang may want room: for pods that wait, for members it
// has lost, or for roles that come late. Succeeded members do not count here,
// since whether they do depends on their siblings: gang.Gang.Broken decides.
func (g *members) wants() bool {
	waits, late, bound, minimum := false, false, 0, 0
	for _, p := range g.pods {
		waits = waits || p.Phase == gang.Pending
		if p.Phase == gang.Bound {
			bound++
		}
		if m := p.membership; m != nil {
			minimum = max(minimum, m.minMember)
			late = late || len(m.late) > 0
			if m.roleMinMember > 0 {
				late = true // a role may be short though the gang is not
			}
		}
	}
	return waits || (bound > 0 && (bound < minimum || late))
}

// resources names every resource that a node offers or a pod wants.
func (c *Cluster) resources(pending [][]*Pod, claims []Claim) map[string]int {
	names := map[string]int{pods: 0, string(corev1.ResourceCPU): 0, string(corev1.ResourceMemory): 0}
	if c.offered == nil {
		c.offered = map[string]bool{}
		for _, n := range c.nodes {
			for _, a := range n.capacity {
				c.offered[a.resource] = true
			}
		}
	}
	for r := range c.offered {
		names[r] = 0
	}
	for _, members := range pending {
		for _, p := range members {
			for _, a := range p.requests {
				if !c.offered[a.resource] {
					names[a.resource] = 0
				}
			}
			if p.membership == nil {
				continue
			}
			for _, late := range p.membership.late {
				for r := range late.requests {
					names[string(r)] = 0
				}
			}
		}
	}
	for _, claim := range claims {
		for r := range claim.Requests {
			names[r] = 0
		}
	}
	return names
}

// fill computes what is allocatable and what is free.
func (c *Cluster) fill(v *View, claims []Claim) {
	s, width := v.Snapshot, len(v.Snapshot.Resources)
	s.Allocatable = make([]int64, width*len(c.order))
	s.Free = make([]int64, width*len(c.order))
	for i, n := range c.order {
		for _, a := range n.capacity {
			s.Allocatable[i*width+v.index[a.resource]] = a.n
		}
		free := s.Free[i*width : (i+1)*width]
		copy(free, s.Allocatable[i*width:(i+1)*width])
		for r, used := range n.used {
			// A bound pod may use what no node offers and no pending pod wants.
			if j, ok := v.index[r]; ok {
				free[j] -= used
			}
		}
	}
	for _, claim := range claims {
		amounts := v.Amounts(claim.Requests)
		for _, h := range claim.Holds {
			if p := c.pods[h.UID]; p != nil && p.Node != "" {
				continue
			}
			if i, ok := s.Tree.Number(h.Node); ok {
				s.AssumeRequest(i, amounts)
				v.Overcommitted[h.Node] = v.Overcommitted[h.Node] || overcommitted(s.Row(i), amounts)
			}
		}
	}
}

// overcommitted tells whether the node has less than nothing of what was taken.
func overcommitted(free, taken []int64) bool {
	for r, n := range taken {
		if n > 0 && free[r] < 0 {
			return true
		}
	}
	return false
}

// assemble makes the gang of these pods.
func (c *Cluster) assemble(v *View, members []*Pod) *Pending {
	key := members[0].Key
	g := &Pending{
		Gang:    gang.Gang{Key: key, Created: members[0].created, Single: members[0].Single},
		Changes: c.gangs[key].changes, Unpinned: map[string]gang.ClassID{},
	}
	foreign := map[string]int{}
	var stated []*Pod // pods whose word counts for the gang's spec
	running := false
	for _, p := range members {
		if p.states() {
			stated = append(stated, p)
		}
		if p.Phase == gang.Pending && len(p.foreign) > 0 {
			foreign[p.foreign[0]]++
			continue
		}
		id := gang.ClassID(-1)
		// One running member stands for what the others want.
		if !v.seated[p.UID] && (p.Phase != gang.Bound || !running) {
			id = c.memberClass(v, g, p)
		}
		running = running || p.Phase == gang.Bound && id >= 0
		g.Members = append(g.Members, p.member(id))
	}
	slices.SortFunc(g.Members, byRole)
	for gate, n := range foreign {
		g.Foreign = append(g.Foreign, gang.Count{Reason: gate, N: n})
	}
	slices.SortFunc(g.Foreign, func(a, b gang.Count) int { return cmp.Compare(a.Reason, b.Reason) })
	switch g.Invalid = c.invalid(members); {
	case g.Invalid != "":
	case g.Single:
		g.Spec = gang.Spec{MinMember: 1, Priority: members[0].priority}
	case len(stated) > 0:
		c.specify(v, g, stated)
	}
	return g
}

// states tells whether the pod's word counts for its gang's spec.
func (p *Pod) states() bool { return p.membership != nil && p.bad == nil && p.Phase != gang.Gone }

// memberClass gives the class of a member, or -1 where it is of no interest. That
// of a running member is without its pin.
func (c *Cluster) memberClass(v *View, g *Pending, p *Pod) gang.ClassID {
	switch {
	case p.object == nil:
		return -1
	case p.Pinned == "":
		return c.classID(v, c.classOf(p))
	}
	free := c.classID(v, c.shared(newClass(withoutPin(p.object, p.Pinned), p.requests, p.links)))
	if p.Phase == gang.Bound {
		return free
	}
	g.Unpinned[string(p.UID)] = free
	return c.classID(v, c.classOf(p))
}

// specify reads the gang's spec from the pods whose word counts.
func (c *Cluster) specify(v *View, g *Pending, stated []*Pod) {
	g.Spec = specOf(stated)
	sum := 0
	for _, r := range g.Spec.Roles {
		sum += r.MinMember
	}
	if sum > g.Spec.MinMember {
		g.Invalid = fmt.Sprintf("the role minimums add up to %d, which is more than min-member=%d", sum, g.Spec.MinMember)
		return
	}
	newest := slices.MaxFunc(stated, (*Pod).byAge)
	like := newest.object
	if like == nil {
		like = &corev1.Pod{}
	}
	if newest.Pinned != "" {
		like = withoutPin(like, newest.Pinned)
	}
	for _, late := range newest.membership.late {
		id := c.classID(v, newClass(like, amountsOf(late.requests), links{}))
		g.Spec.LateRoles = append(g.Spec.LateRoles, gang.LateRole{Name: late.name, Members: late.members, Class: id})
	}
}

// classID gives the class a place in the view's table.
func (c *Cluster) classID(v *View, cl *class) gang.ClassID {
	if id, ok := v.classes[cl]; ok {
		return id
	}
	cl.refresh(c.generation, c.order)
	request := make([]int64, len(v.Snapshot.Resources))
	for _, a := range cl.requests {
		request[v.index[a.resource]] = a.n
	}
	id := gang.ClassID(len(v.Snapshot.Classes))
	v.Snapshot.Classes = append(v.Snapshot.Classes, gang.Class{
		Request: request, Eligible: cl.eligible, MaxPerNode: cl.maxPerNode, Ineligible: cl.ineligible,
		LinkRequired: cl.links.required, LinkPreferred: cl.links.preferred,
	})
	v.classes[cl] = id
	return id
}

// Amounts is the inverse of Requests: what a Hold takes, per Snapshot.Resources.
// Resources that the snapshot does not have are left out.
func (v *View) Amounts(requests map[string]int64) []int64 {
	out := make([]int64, len(v.Snapshot.Resources))
	for r, n := range requests {
		if i, ok := v.index[r]; ok {
			out[i] = n
		}
	}
	return out
}

// Requests gives the requests of a class by resource name, as a Hold has them.
func (v *View) Requests(id gang.ClassID) map[string]int64 {
	out := map[string]int64{}
	for i, n := range v.Snapshot.Classes[id].Request {
		if n > 0 {
			out[v.Snapshot.Resources[i]] = n
		}
	}
	return out
}
