package extender

import (
	"errors"
	"log/slog"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Prefix is the path of kube-scheduler's verbs: the urlPrefix of its configuration.
const Prefix = "/scheduler"

// Options of the handler.
type Options struct {
	Seats   Seats
	Binder  Binder
	Victims Victims
	// Ready says why this replica must not be asked, or nil.
	Ready func() error
	// BindTimeout bounds a bind call, the wait for the rest of its gang included.
	BindTimeout time.Duration
	// ClientCertificates demands a verified certificate of whoever calls a verb.
	ClientCertificates bool
	// Profiling serves /debug/pprof.
	Profiling  bool
	Registerer prometheus.Registerer
	Gatherer   prometheus.Gatherer
	Log        *slog.Logger
}

const (
	// lookupTimeout bounds the verbs that answer from memory. kube-scheduler does
	// nothing else while it waits for Filter.
	lookupTimeout = 5 * time.Second
	// maxBody bounds a request: a pod may have about 1.5 MiB, and 15,000 names of
	// nodes 4 MiB at most.
	maxBody = 8 << 20
	// healthPath and its like are open to callers without a certificate.
	healthPath, readyPath, metricsPath = "/healthz", "/readyz", "/metrics"
)

// New makes the handler of all routes.
func New(o Options) http.Handler {
	m := newMetrics(o.Registerer)
	h := &handler{Options: o, metrics: m}
	r := chi.NewRouter()
	r.Use(h.recover)
	r.Group(func(r chi.Router) {
		if o.ClientCertificates {
			r.Use(demandCertificate)
		}
		r.Post(Prefix+"/filter", verb(h, "filter", lookupTimeout, h.filter))
		r.Post(Prefix+"/prioritize", verb(h, "prioritize", lookupTimeout, h.prioritize))
		r.Post(Prefix+"/preempt", verb(h, "preempt", lookupTimeout, h.preempt))
		r.Post(Prefix+"/bind", verb(h, "bind", o.BindTimeout, h.bind))
		if o.Profiling {
			r.HandleFunc("/debug/pprof/*", pprof.Index)
			r.HandleFunc("/debug/pprof/profile", pprof.Profile)
			r.HandleFunc("/debug/pprof/trace", pprof.Trace)
			r.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
			r.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		}
	})
	// The API server authenticates itself to webhooks only where it is told to.
	r.Post("/admission/pods", verb(h, "admission", lookupTimeout, h.admit))
	r.Get(healthPath, func(w http.ResponseWriter, _ *http.Request) { text(w, http.StatusOK, "ok") })
	r.Get(readyPath, h.ready)
	r.Method(http.MethodGet, metricsPath, promhttp.HandlerFor(o.Gatherer, promhttp.HandlerOpts{}))
	return r
}

type handler struct {
	Options
	metrics *metrics
}

func (h *handler) ready(w http.ResponseWriter, _ *http.Request) {
	if err := h.Ready(); err != nil {
		text(w, http.StatusServiceUnavailable, err.Error())
		return
	}
	text(w, http.StatusOK, "ok")
}

// recover turns a panic into an error of one call.
func (h *handler) recover(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if p := recover(); p != nil {
				if err, ok := p.(error); ok && errors.Is(err, http.ErrAbortHandler) {
					panic(p)
				}
				h.metrics.panics.Inc()
				h.Log.Error("a request panicked", "path", r.URL.Path, "panic", p)
				text(w, http.StatusInternalServerError, "internal error")
			}
		}()
		next.ServeHTTP(w, r)
	})
}

func demandCertificate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
			text(w, http.StatusUnauthorized, "a client certificate is needed")
			return
		}
		next.ServeHTTP(w, r)
	})
}
