package reservation

import (
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// Bounds of calls to Redis. A read of the feed may take blockFor longer.
const (
	dialTimeout  = 2 * time.Second
	readTimeout  = 3 * time.Second
	writeTimeout = 3 * time.Second
)

// Connect makes a client for a URL as redis://user:password@host:port/db, or
// rediss:// for TLS. It does not connect yet.
func Connect(url string) (redis.UniversalClient, error) {
	opts, err := redis.ParseURL(url)
	if err != nil {
		return nil, fmt.Errorf("reading the URL of Redis: %w", err)
	}
	opts.DialTimeout, opts.ReadTimeout, opts.WriteTimeout = dialTimeout, readTimeout, writeTimeout
	opts.ContextTimeoutEnabled = true
	// Idle connections are checked before they are used, so that a restarted
	// Redis costs no call.
	opts.MinIdleConns = 2
	return redis.NewClient(opts), nil
}

// Embedded starts a Redis inside this process, for a single replica. Nothing of
// it outlives the process: what matters is rebuilt from the cluster's pods.
func Embedded() (redis.UniversalClient, *miniredis.Miniredis, error) {
	server := miniredis.NewMiniRedis()
	if err := server.StartAddr("127.0.0.1:0"); err != nil {
		return nil, nil, fmt.Errorf("starting the embedded Redis: %w", err)
	}
	client, err := Connect("redis://" + server.Addr())
	if err != nil {
		server.Close()
		return nil, nil, err
	}
	return client, server, nil
}
