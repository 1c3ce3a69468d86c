package lab

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
)

// Ports are drawn below the range that the kernel hands to outgoing connections
// (from 32768 on Linux): one of those could take a port between its choice and
// the moment the component listens.
const (
	firstPort = 20000
	lastPort  = 31999
)

// ports hands out free loopback ports and keeps other labs of this machine from
// drawing the same ones until close.
type ports struct {
	claims []io.Closer
}

// next returns a port on which nothing listens and which no other lab holds.
func (p *ports) next() (int, error) {
	const tries = 200
	var last error
	for range tries {
		port := firstPort + rand.IntN(lastPort-firstPort+1)
		claim, err := claimPort(port)
		if err != nil {
			last = err
			continue
		}
		if err := tryListen(port); err != nil {
			last = errors.Join(err, claim.Close())
			continue
		}
		p.claims = append(p.claims, claim)
		return port, nil
	}
	return 0, fmt.Errorf("no free port among %d drawn from %d-%d, the last: %w", tries, firstPort, lastPort, last)
}

// close gives the ports back.
func (p *ports) close() error {
	var errs []error
	for _, claim := range p.claims {
		errs = append(errs, claim.Close())
	}
	p.claims = nil
	return errors.Join(errs...)
}

func tryListen(port int) error {
	listener, err := net.Listen("tcp", loopback(port))
	if err != nil {
		return err
	}
	return listener.Close()
}

func loopback(port int) string {
	return fmt.Sprintf("127.0.0.1:%d", port)
}
