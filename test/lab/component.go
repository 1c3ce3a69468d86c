package lab

// Component names one process of the lab. The name is also that of its binary
// and, with ".log" added, of its log file.
type Component string

// The processes of a lab.
const (
	Etcd              Component = "etcd"
	APIServer         Component = "kube-apiserver"
	ControllerManager Component = "kube-controller-manager"
	Scheduler         Component = "kube-scheduler"
	KWOK              Component = "kwok"
)

// Components lists every component in the order in which they start.
func Components() []Component {
	return []Component{Etcd, APIServer, ControllerManager, Scheduler, KWOK}
}
