package reservation

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// content is what a mirror holds of the store.
type content struct {
	revision Revision
	asOf     uint64
	last     string // id of the feed's last entry seen
	gangs    map[string]*entry
	seats    map[string]Held // by UID
	verdicts map[string]Verdict
}

type entry struct {
	*Reservation
	committedAt time.Time // by the local clock, when this mirror saw it
}

func newContent() content {
	return content{gangs: map[string]*entry{}, seats: map[string]Held{}, verdicts: map[string]Verdict{}}
}

// errGap means that the feed does not go on where the mirror is.
var errGap = errors.New("the feed has a gap")

// decodeSnapshot reads what the script snapshot gives.
func decodeSnapshot(list []any) (content, error) {
	c := newContent()
	if len(list) != 6 {
		return c, fmt.Errorf("redis: snapshot: %d parts", len(list))
	}
	c.revision.Incarnation, _ = list[0].(string)
	c.last, _ = list[3].(string)
	var err error
	for i, to := range []*uint64{&c.revision.Rev, &c.asOf} {
		text, _ := list[i+1].(string)
		if *to, err = strconv.ParseUint(text, 10, 64); err != nil {
			return c, fmt.Errorf("redis: snapshot: %w", err)
		}
	}
	err = pairs(list[4], func(gang, record string) error {
		r, err := decode(gang, record)
		if err == nil {
			c.put(gang, r)
		}
		return err
	})
	if err != nil {
		return c, err
	}
	return c, pairs(list[5], c.setVerdict)
}

func pairs(list any, take func(key, value string) error) error {
	words, _ := list.([]any)
	for i := 0; i+1 < len(words); i += 2 {
		key, _ := words[i].(string)
		value, _ := words[i+1].(string)
		if err := take(key, value); err != nil {
			return err
		}
	}
	return nil
}

// apply takes in one entry of the feed. It gives the attempt that has ended with
// it, if one has, and why. After an error the content is to be read anew.
func (c *content) apply(message redis.XMessage) (attempt, why string, err error) {
	get := func(name string) string {
		text, _ := message.Values[name].(string)
		return text
	}
	rev, err := strconv.ParseUint(get("rev"), 10, 64)
	if err != nil {
		return "", "", fmt.Errorf("redis: feed: entry %s: %w", message.ID, err)
	}
	if rev != c.revision.Rev+1 {
		return "", "", errGap
	}
	name := get("gang")
	switch op := get("op"); op {
	case "reserve":
		var r *Reservation
		if r, err = decode(name, get("record")); err == nil {
			c.put(name, r)
		}
	case "commit":
		c.commit(name, get("attempt"))
	case "release":
		c.remove(name)
		attempt, why = get("attempt"), get("why")
		if asOf, err := strconv.ParseUint(get("asof"), 10, 64); err == nil {
			c.asOf = max(c.asOf, asOf)
		}
	case "verdict":
		err = c.setVerdict(name, get("verdict"))
	default:
		err = fmt.Errorf("redis: feed: entry %s: unknown change %q", message.ID, op)
	}
	if err != nil {
		return "", "", err
	}
	c.revision.Rev, c.last = rev, message.ID
	return attempt, why, nil
}

func (c *content) setVerdict(name, text string) error {
	if text == "" {
		delete(c.verdicts, name)
		return nil
	}
	var v Verdict
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		return fmt.Errorf("decoding the verdict on gang %s: %w", name, err)
	}
	c.verdicts[name] = v
	return nil
}

func (c *content) put(name string, r *Reservation) {
	c.remove(name)
	e := &entry{Reservation: r}
	if r.Phase == Committed {
		e.committedAt = time.Now()
	}
	c.gangs[name] = e
	for _, member := range r.Members {
		if member.UID != "" {
			c.seats[member.UID] = Held{r.Gang, r.Attempt, member.Node, r.Phase, r.Level, r.Domain, member.GPUs}
		}
	}
}

func (c *content) commit(name, attempt string) {
	if old := c.gangs[name]; old != nil && old.Attempt == attempt {
		r := *old.Reservation
		r.Phase = Committed
		c.put(name, &r)
	}
}

func (c *content) remove(name string) {
	old := c.gangs[name]
	if old == nil {
		return
	}
	delete(c.gangs, name)
	for _, member := range old.Members {
		if c.seats[member.UID].Attempt == old.Attempt {
			delete(c.seats, member.UID)
		}
	}
}

// keepTimes takes over when what is committed was first seen so.
func (c *content) keepTimes(from *content) {
	for name, e := range c.gangs {
		old := from.gangs[name]
		if old != nil && old.Attempt == e.Attempt && e.Phase == Committed && old.Phase == Committed {
			e.committedAt = old.committedAt
		}
	}
}
