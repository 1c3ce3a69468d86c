package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-scheduler/lockstep/extender/cluster"
	"github.com/lockstep-scheduler/lockstep/gang"
	"github.com/lockstep-scheduler/lockstep/gang/reservation"
)

// How much is written about a gang that waits. A gang that starts at once is
// not explained at all.
const (
	// patience is how long a reason must stand before it is told; that members are
	// missing, only when none has come or gone for a while: a large gang's pods
	// take their time to be created, and each of them would be written to.
	patience       = time.Second
	memberPatience = 3 * time.Second
	// conditionEvery is the least time between two texts for one gang; each
	// member adds conditionPerPod, so that large gangs are told less often.
	conditionEvery  = 10 * time.Second
	conditionPerPod = 50 * time.Millisecond
	// eventPods bounds the members of a gang that get an event of their own; the
	// condition is on all of them.
	eventPods = 16
)

// explain tells the gangs' pods why they wait: through the store, so that each
// replica answers Filter with the same text, in the condition PodScheduled of
// gated pods, and as an event.
func (c *Controller) explain(ctx context.Context, r *round) {
	counts := map[label]int{}
	oldest := map[gang.Code]float64{}
	wanted := map[gang.Key]bool{}
	for _, g := range r.view.Gangs {
		wanted[g.Key] = true
		rec := c.history.of(g.Key)
		if !waits(g) {
			rec.refused = nil
			c.retract(ctx, g.Key, rec)
			continue
		}
		phase, why := c.phase(r, g, rec)
		code := gang.Code("")
		if why != nil {
			code = why.Code
			oldest[code] = max(oldest[code], r.now.Sub(g.Created).Seconds())
		}
		counts[label{phase, string(code)}]++
		if why != nil {
			c.tell(ctx, r, g, rec, why)
		} else {
			c.retract(ctx, g.Key, rec)
		}
	}
	for _, key := range c.mirror.VerdictKeys() {
		if !wanted[key] {
			c.clear(ctx, key)
		}
	}
	c.history.keepOnly(wanted)
	c.metrics.set(counts, oldest)
}

// waits tells whether the gang has pods that wait or is short of some.
func waits(g *cluster.Pending) bool {
	return g.Broken() || len(g.Foreign) > 0 || slices.ContainsFunc(g.Members, func(m gang.Member) bool { return m.Phase == gang.Pending })
}

// retract takes back what was told about a gang that waits no more.
func (c *Controller) retract(ctx context.Context, key gang.Key, rec *record) {
	if _, ok := c.mirror.Verdict(key); ok {
		c.clear(ctx, key)
		rec.told, rec.toldCode = "", ""
	}
}

func (c *Controller) clear(ctx context.Context, key gang.Key) {
	if err := c.store.ClearVerdict(ctx, key); err != nil {
		c.opts.Log.Warn("clearing a verdict failed; it is tried again", "gang", key.String(), "error", err)
	}
}

// phase tells where the gang stands, and why it waits if it does.
func (c *Controller) phase(r *round, g *cluster.Pending, rec *record) (string, *gang.Unschedulable) {
	res := r.held[g.Key]
	switch {
	case g.Invalid != "":
		return phaseInvalid, &gang.Unschedulable{Code: gang.CodeInvalid, Detail: g.Invalid}
	case res != nil && res.Phase == reservation.Committed:
		return phaseStarting, nil
	case res != nil:
		return phaseReserved, nil
	case g.Broken():
		return phaseBroken, rec.refused
	}
	return phaseWaiting, rec.refused
}

// tell passes on why the gang waits, when there is something new to tell.
func (c *Controller) tell(ctx context.Context, r *round, g *cluster.Pending, rec *record, why *gang.Unschedulable) {
	if why.Code == gang.CodeRoom {
		why = &gang.Unschedulable{Code: why.Code, Detail: why.Detail + r.heldText(g.Key)}
	}
	code, text := string(why.Code), message(g.Key, g.Single, why)
	if !rec.due(r.now, g, why.Code, text) {
		return
	}
	news := code != rec.toldCode
	if err := c.store.SetVerdict(ctx, g.Key, reservation.Verdict{Code: code, Text: text}); err != nil {
		c.opts.Log.Warn("storing a verdict failed; it is tried again", "gang", g.Key.String(), "error", err)
		return
	}
	rec.told, rec.toldCode, rec.toldAt = text, code, r.now
	told := 0
	for _, m := range g.Members {
		pod, ok := c.cluster.Pod(types.UID(m.UID))
		if !ok || pod.Phase != gang.Pending {
			continue
		}
		// Of a pod without a gate this wakes kube-scheduler, which then puts the
		// same text into its own words.
		if !strings.Contains(pod.Message, text) {
			c.placer.background(ctx, "explaining", pod, func(ctx context.Context) error { return c.writer.Explain(ctx, pod, text) })
		}
		if told++; news && told <= eventPods {
			c.warn(pod, "GangPending", text)
		}
	}
}

// due tells whether the text is to be told now.
func (rec *record) due(now time.Time, g *cluster.Pending, code gang.Code, text string) bool {
	if code != rec.code || (code == gang.CodeMembers && g.Changes != rec.codeChanges) {
		rec.code, rec.codeSince, rec.codeChanges = code, now, g.Changes
	}
	least := patience
	if code == gang.CodeMembers {
		least = memberPatience
	}
	pause := conditionEvery + time.Duration(len(g.Members))*conditionPerPod
	switch {
	case text == rec.told, string(code) == rec.toldCode && now.Sub(rec.toldAt) < pause:
		return false
	}
	return g.Invalid != "" || now.Sub(rec.codeSince) >= least
}

// message is what a member of the gang is told: under 1 kB, the same for all.
func message(key gang.Key, single bool, why *gang.Unschedulable) string {
	text := why.String()
	if why.Code == gang.CodeInvalid {
		text = "held: " + text
	}
	if !single {
		text = fmt.Sprintf("gang %s: %s", key, text)
	}
	const limit = 1000
	if len(text) > limit {
		text = strings.ToValidUTF8(text[:limit], "") + "..." // no half a letter
	}
	return text
}

// warn makes an event of the type Warning on the pod.
func (c *Controller) warn(p *cluster.Pod, reason, text string) {
	c.events.Eventf(&corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, UID: p.UID},
	}, nil, corev1.EventTypeWarning, reason, "Scheduling", "%s", text)
}
