package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/lockstep-scheduler/lockstep/api/v1alpha1"
)

// Driver takes stock of a node's GPUs.
type Driver interface {
	Read() (*Inventory, error)
}

// Allocations tells who uses the GPUs of an inventory.
type Allocations interface {
	Uses(ctx context.Context, inv *Inventory) ([]Use, error)
}

// Options of an Agent.
type Options struct {
	Driver      Driver
	Allocations Allocations
	Publisher   *Publisher
	// NUMAPolicy gives the kubelet's topology manager policy, "" if it is not known;
	// nil: it is not.
	NUMAPolicy func() string
	// Interval is the time between two polls, Heartbeat how often a report that
	// has not changed is written again.
	Interval, Heartbeat time.Duration
	// Now is the clock; nil: time.Now.
	Now     func() time.Time
	Metrics *Metrics
	Log     *slog.Logger
}

// Agent polls a node and publishes what it finds.
type Agent struct {
	opts    Options
	reading chan stock // of a driver that takes long; nil: none is under way
	problem string     // last told in the log
}

// stock is the result of one reading of the driver.
type stock struct {
	inventory *Inventory
	err       error
}

// Patience with the parts that a poll asks. A driver may hang for good over a
// broken GPU; the agent must go on and say so.
const (
	driverPatience  = 20 * time.Second
	kubeletPatience = 5 * time.Second
	publishPatience = 10 * time.Second
)

var errHangs = errors.New("the driver does not answer")

// New makes an Agent.
func New(o Options) *Agent {
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Agent{opts: o}
}

// Run polls until ctx ends.
func (a *Agent) Run(ctx context.Context) {
	tick := time.NewTicker(a.opts.Interval)
	defer tick.Stop()
	for {
		if err := a.Poll(ctx); err != nil && ctx.Err() == nil {
			a.opts.Log.Warn("publishing the node's topology failed; it is tried again", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Poll reads the node once and publishes what it found, if that is new.
func (a *Agent) Poll(ctx context.Context) error {
	started := a.opts.Now()
	p := a.poll(ctx)
	status := report(p)
	a.opts.Metrics.polled(p, a.opts.Now().Sub(started))
	a.tell(&status)
	ctx, cancel := context.WithTimeout(ctx, publishPatience)
	defer cancel()
	wrote, err := a.opts.Publisher.Publish(ctx, func(old *v1alpha1.NodeTopologyStatus) (*v1alpha1.NodeTopologyStatus, bool) {
		fresh := status.DeepCopy()
		due := carry(old, fresh, a.opts.Now(), a.opts.Heartbeat)
		return fresh, due
	})
	a.opts.Metrics.published(wrote, err)
	return err
}

// Once reads the node and gives the report without publishing it, and what the free
// GPUs are good for, a line for each number of them.
func (a *Agent) Once(ctx context.Context) (v1alpha1.NodeTopologyStatus, string) {
	p := a.poll(ctx)
	status := report(p)
	carry(&v1alpha1.NodeTopologyStatus{}, &status, a.opts.Now(), a.opts.Heartbeat)
	if p.inventory == nil {
		return status, ""
	}
	return status, rings(p.inventory, p.free())
}

func (a *Agent) poll(ctx context.Context) poll {
	var p poll
	p.inventory, p.driver = a.stock(ctx)
	if p.driver != nil || len(p.inventory.GPUs) == 0 {
		return p
	}
	if a.opts.NUMAPolicy != nil {
		p.inventory.NUMAPolicy = a.opts.NUMAPolicy()
	}
	ctx, cancel := context.WithTimeout(ctx, kubeletPatience)
	defer cancel()
	p.uses, p.kubelet = a.opts.Allocations.Uses(ctx, p.inventory)
	return p
}

// stock reads the driver, with patience. A reading that hangs is waited for by the
// next poll, so that there is never more than one.
func (a *Agent) stock(ctx context.Context) (*Inventory, error) {
	if a.reading == nil {
		reading := make(chan stock, 1)
		a.reading = reading
		go func() {
			inv, err := a.opts.Driver.Read()
			reading <- stock{inv, err}
		}()
	}
	patience := time.NewTimer(driverPatience)
	defer patience.Stop()
	select {
	case got := <-a.reading:
		a.reading = nil
		return got.inventory, got.err
	case <-patience.C:
		return nil, fmt.Errorf("%w for %s", errHangs, driverPatience)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// tell logs what is wrong once, not at every poll.
func (a *Agent) tell(status *v1alpha1.NodeTopologyStatus) {
	ready := status.Conditions[0]
	if ready.Message == a.problem {
		return
	}
	a.problem = ready.Message
	a.opts.Log.Info("the node's topology", "ready", ready.Status, "reason", ready.Reason, "message", ready.Message,
		"gpus", status.GPUCount, "free", status.FreeCount)
}
