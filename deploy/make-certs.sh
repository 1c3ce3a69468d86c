#!/bin/sh
# Makes a CA, the extender's server certificate and kube-scheduler's client
# certificate under deploy/certs/. Usage: make-certs.sh [CLUSTER_IP_OF_THE_SERVICE]
set -eu
cd "$(dirname "$0")"
mkdir -p certs
cd certs
umask 077
days=3650
san="DNS:lockstep-extender.lockstep-system.svc,DNS:lockstep-extender.lockstep-system.svc.cluster.local,DNS:localhost,IP:127.0.0.1"
[ $# -eq 0 ] || san="$san,IP:$1"

[ -f ca.key ] || openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes \
	-days "$days" -subj "/CN=lockstep-ca" -keyout ca.key -out ca.crt 2>/dev/null

issue() { # name subject usage san
	openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "$2" \
		-keyout "$1.key" -out "$1.csr" 2>/dev/null
	printf 'extendedKeyUsage=%s\n%s' "$3" "${4:+subjectAltName=$4}" >"$1.ext"
	openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days "$days" \
		-extfile "$1.ext" -out "$1.crt" 2>/dev/null
	rm "$1.csr" "$1.ext"
}
issue tls "/CN=lockstep-extender" serverAuth "$san"
issue client "/CN=system:kube-scheduler" clientAuth ""

cat <<EOF
Made in $(pwd):
  for the extender:       ca.crt tls.crt tls.key
    kubectl -n lockstep-system create secret generic lockstep-extender-tls \\
      --from-file=ca.crt --from-file=tls.crt --from-file=tls.key
  for kube-scheduler:     ca.crt client.crt client.key
    copy them to /etc/kubernetes/lockstep/ on the control plane nodes
EOF
