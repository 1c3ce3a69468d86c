package reservation

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/lockstep-scheduler/lockstep/gang"
)

// keys names everything in Redis. All keys of one cluster carry the same hash
// tag, so that in a Redis Cluster they are in one slot and one script can touch
// them. Nothing is written outside the prefix.
//
//	lockstep:{cluster}:meta        hash    incarnation, rev, taken, asof, schema
//	lockstep:{cluster}:feed        stream  every change, trimmed
//	lockstep:{cluster}:gangs       hash    gang → record of its reservation
//	lockstep:{cluster}:verdicts    hash    gang → why it waits
//	lockstep:{cluster}:g:<id>:state   hash    attempt, phase, need, deadline, rev
//	lockstep:{cluster}:g:<id>:need    set     UIDs of required members
//	lockstep:{cluster}:g:<id>:here    zset    UIDs at the barrier, by the end of their lease
//	lockstep:{cluster}:lease:<name>   string  holder, expiring
//
// With no gang left only meta, the feed and leases that run out remain. Redis must
// not evict keys (maxmemory-policy noeviction, its default).
type keys struct{ prefix string }

func newKeys(cluster string) keys {
	// A brace in the name would change the hash tag, and an empty one is none.
	cluster = cmp.Or(cluster, "default")
	cluster = strings.NewReplacer("{", "_", "}", "_").Replace(cluster)
	return keys{"lockstep:{" + cluster + "}:"}
}

func (k keys) meta() string              { return k.prefix + "meta" }
func (k keys) feed() string              { return k.prefix + "feed" }
func (k keys) gangs() string             { return k.prefix + "gangs" }
func (k keys) verdicts() string          { return k.prefix + "verdicts" }
func (k keys) lease(name string) string  { return k.prefix + "lease:" + name }
func (k keys) state(key gang.Key) string { return k.gang(key) + "state" }
func (k keys) need(key gang.Key) string  { return k.gang(key) + "need" }
func (k keys) here(key gang.Key) string  { return k.gang(key) + "here" }

// gang hashes the gang's name, which users choose, into a key of fixed length.
func (k keys) gang(key gang.Key) string {
	sum := sha256.Sum256([]byte(field(key)))
	return k.prefix + "g:" + hex.EncodeToString(sum[:16]) + ":"
}

// field is the gang's name in hashes and in the feed. A namespace has no slash,
// so no two gangs share one.
func field(key gang.Key) string { return key.String() }

func parseField(f string) (gang.Key, error) {
	namespace, name, ok := strings.Cut(f, "/")
	if !ok {
		return gang.Key{}, fmt.Errorf("decoding the name of a gang: %.80q has no slash", f)
	}
	return gang.Key{Namespace: namespace, Name: name}, nil
}
