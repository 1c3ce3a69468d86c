// A libnvidia-ml.so.1 for tests: it answers what the node agent asks from the
// description file that LOCKSTEP_FAKE_NVML names. The file is read again whenever the
// GPUs are counted, so a test can change the machine while the agent runs.
//
// One fact per line; # begins a comment:
//
//   driver VERSION
//   gpu INDEX UUID BUS MEMORY_MIB MODEL...        the model is the rest of the line
//   pcie INDEX GENERATION WIDTH
//   links INDEX FROM TO MBPS VERSION switch       links FROM..TO of the GPU, which are up
//   links INDEX FROM TO MBPS VERSION gpu PEER
//   down INDEX LINK                               a link that is not up
//   path A B LEVEL                                common ancestor, as NVML counts: 0 10 .. 50
//   nop2p A B                                     no peer access by NVLink
//   fabric INDEX STATE STATUS CLIQUE UUID_HEX
//   mig INDEX UUID...                             MIG mode, with these devices
//   remapped INDEX PENDING FAILED
//   ecc INDEX UNCORRECTED
//   usage INDEX GPU_PERCENT CELSIUS MILLIWATTS
//   xid INDEX CODE                                an event, given once per reading of the file
//   lost INDEX                                    every call for the GPU says so
//   fail FUNCTION CODE                            every call of the function fails
//
// With -DOLD_DRIVER the symbols that came after the 450 driver are missing.
#define _GNU_SOURCE
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include "nvml.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GPUS 32
#define LINKS 36
#define MIGS 8

struct link {
	int present, up, version, peer; // peer -1: a switch
	unsigned int mbps;
};

struct nvmlDevice_st {
	int present, index, lost, mig, migs;
	char uuid[96], model[1024], bus[40];
	unsigned long long memory, ecc;
	int generation, width;
	struct link links[LINKS];
	int path[GPUS], nop2p[GPUS];
	int fabric, state, status;
	unsigned int clique;
	unsigned char cluster[16];
	unsigned int pending, failed;
	unsigned int usage, celsius, milliwatts;
	int xid;
	struct nvmlDevice_st *parent; // of a MIG device
};

static struct {
	char driver[80];
	int count;
	struct nvmlDevice_st gpus[GPUS];
	struct nvmlDevice_st mig[GPUS][MIGS];
	int failures;
	struct { char name[96]; int code; } fail[64];
} machine;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int initialized;

static struct nvmlDevice_st *gpu(int i) { return &machine.gpus[i >= 0 && i < GPUS ? i : GPUS - 1]; }

static void fact(char *line)
{
	int i, a, b, c, d, n = 0;
	char word[96], hex[40];
	unsigned long long big;
	if (sscanf(line, "driver %79s", machine.driver) == 1) return;
	if (sscanf(line, "gpu %d %95s %31s %llu %n", &i, word, hex, &big, &n) == 4 && n > 0) {
		struct nvmlDevice_st *g = gpu(i);
		g->present = 1;
		g->index = i;
		snprintf(g->uuid, sizeof g->uuid, "%s", word);
		snprintf(g->bus, sizeof g->bus, "%s", hex);
		snprintf(g->model, sizeof g->model, "%s", line + n);
		g->memory = big << 20;
		g->generation = 4;
		g->width = 16;
		for (a = 0; a < GPUS; a++) g->path[a] = 50;
		if (i >= machine.count) machine.count = i + 1;
		return;
	}
	if (sscanf(line, "pcie %d %d %d", &i, &a, &b) == 3) { gpu(i)->generation = a; gpu(i)->width = b; return; }
	if (sscanf(line, "links %d %d %d %d %d %95s %n", &i, &a, &b, &c, &d, word, &n) >= 6) {
		int peer = -1;
		if (strcmp(word, "gpu") == 0) sscanf(line, "links %*d %*d %*d %*d %*d gpu %d", &peer);
		for (; a <= b && a < LINKS; a++)
			gpu(i)->links[a] = (struct link){.present = 1, .up = 1, .version = d, .peer = peer, .mbps = (unsigned int)c};
		return;
	}
	if (sscanf(line, "down %d %d", &i, &a) == 2 && a >= 0 && a < LINKS) { gpu(i)->links[a].up = 0; return; }
	if (sscanf(line, "path %d %d %d", &a, &b, &c) == 3) { gpu(a)->path[b % GPUS] = c; gpu(b)->path[a % GPUS] = c; return; }
	if (sscanf(line, "nop2p %d %d", &a, &b) == 2) { gpu(a)->nop2p[b % GPUS] = 1; gpu(b)->nop2p[a % GPUS] = 1; return; }
	if (sscanf(line, "fabric %d %d %d %d %32s", &i, &a, &b, &c, hex) == 5) {
		gpu(i)->fabric = 1;
		gpu(i)->state = a;
		gpu(i)->status = b;
		gpu(i)->clique = (unsigned int)c;
		for (n = 0; n < 16 && hex[2 * n] && hex[2 * n + 1]; n++) {
			unsigned int byte = 0;
			sscanf(hex + 2 * n, "%2x", &byte);
			gpu(i)->cluster[n] = (unsigned char)byte;
		}
		return;
	}
	if (sscanf(line, "mig %d %n", &i, &n) == 1 && n > 0) {
		struct nvmlDevice_st *g = gpu(i);
		g->mig = 1;
		for (char *w = strtok(line + n, " "); w && g->migs < MIGS; w = strtok(NULL, " ")) {
			struct nvmlDevice_st *m = &machine.mig[i % GPUS][g->migs++];
			m->present = 1;
			m->parent = g;
			snprintf(m->uuid, sizeof m->uuid, "%s", w);
		}
		return;
	}
	if (sscanf(line, "remapped %d %d %d", &i, &a, &b) == 3) { gpu(i)->pending = a; gpu(i)->failed = b; return; }
	if (sscanf(line, "ecc %d %llu", &i, &big) == 2) { gpu(i)->ecc = big; return; }
	if (sscanf(line, "usage %d %d %d %d", &i, &a, &b, &c) == 4) { gpu(i)->usage = a; gpu(i)->celsius = b; gpu(i)->milliwatts = c; return; }
	if (sscanf(line, "xid %d %d", &i, &a) == 2) { gpu(i)->xid = a; return; }
	if (sscanf(line, "lost %d", &i) == 1) { gpu(i)->lost = 1; return; }
	if (sscanf(line, "fail %63s %d", word, &a) == 2 && machine.failures < 64) {
		snprintf(machine.fail[machine.failures].name, sizeof word, "%s", word);
		machine.fail[machine.failures++].code = a;
		return;
	}
	fprintf(stderr, "fake NVML: cannot read: %s\n", line);
	abort();
}

static void load(void)
{
	const char *path = getenv("LOCKSTEP_FAKE_NVML");
	FILE *f = path ? fopen(path, "r") : NULL;
	char line[1024];
	memset(&machine, 0, sizeof machine);
	if (!f) return;
	while (fgets(line, sizeof line, f)) {
		line[strcspn(line, "#\r\n")] = 0;
		for (int n = strlen(line); n > 0 && line[n - 1] == ' '; n--) line[n - 1] = 0;
		if (line[0]) fact(line);
	}
	fclose(f);
}

static nvmlReturn_t failure(const char *name)
{
	if (!initialized) return NVML_ERROR_UNINITIALIZED;
	for (int i = 0; i < machine.failures; i++)
		if (strcmp(machine.fail[i].name, name) == 0) return machine.fail[i].code;
	return NVML_SUCCESS;
}

// CALL begins every function for a device.
#define CALL(device)                                              \
	nvmlReturn_t bad = failure(__func__);                     \
	if (bad != NVML_SUCCESS) return bad;                      \
	struct nvmlDevice_st *g = (device).handle;                \
	if (!g || !g->present) return NVML_ERROR_INVALID_ARGUMENT; \
	if (g->lost || (g->parent && g->parent->lost)) return NVML_ERROR_GPU_IS_LOST

static nvmlReturn_t text(const char *from, char *to, unsigned int length)
{
	if (strlen(from) + 1 > length) return NVML_ERROR_INSUFFICIENT_SIZE;
	strcpy(to, from);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlInit_v2(void)
{
	pthread_mutex_lock(&lock);
	initialized = 1;
	load();
	pthread_mutex_unlock(&lock);
	nvmlReturn_t bad = failure(__func__);
	if (bad != NVML_SUCCESS) initialized = 0;
	return bad;
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) { (void)flags; return nvmlInit_v2(); }

nvmlReturn_t nvmlShutdown(void) { initialized = 0; return NVML_SUCCESS; }

const char *nvmlErrorString(nvmlReturn_t result) { return result == NVML_ERROR_GPU_IS_LOST ? "GPU is lost" : "some error"; }

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
	nvmlReturn_t bad = failure(__func__);
	return bad != NVML_SUCCESS ? bad : text(machine.driver, version, length);
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
	pthread_mutex_lock(&lock);
	load();
	pthread_mutex_unlock(&lock);
	nvmlReturn_t bad = failure(__func__);
	if (bad != NVML_SUCCESS) return bad;
	*count = machine.count;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
	nvmlReturn_t bad = failure(__func__);
	if (bad != NVML_SUCCESS) return bad;
	if (index >= GPUS || !machine.gpus[index].present) return NVML_ERROR_INVALID_ARGUMENT;
	if (machine.gpus[index].lost) return NVML_ERROR_GPU_IS_LOST;
	device->handle = &machine.gpus[index];
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length) { CALL(device); return text(g->uuid, uuid, length); }

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length) { CALL(device); return text(g->model, name, length); }

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	CALL(device);
	*memory = (nvmlMemory_t){.total = g->memory, .free = g->memory / 4, .used = g->memory - g->memory / 4};
	return NVML_SUCCESS;
}

static void busOf(struct nvmlDevice_st *g, nvmlPciInfo_t *pci)
{
	memset(pci, 0, sizeof *pci);
	sscanf(g->bus, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device);
	snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.0", pci->domain, pci->bus, pci->device);
	snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", pci->domain & 0xffff, pci->bus, pci->device);
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) { CALL(device); busOf(g, pci); return NVML_SUCCESS; }

nvmlReturn_t nvmlDeviceGetMaxPcieLinkGeneration(nvmlDevice_t device, unsigned int *n) { CALL(device); *n = g->generation; return NVML_SUCCESS; }

nvmlReturn_t nvmlDeviceGetMaxPcieLinkWidth(nvmlDevice_t device, unsigned int *n) { CALL(device); *n = g->width; return NVML_SUCCESS; }

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, nvmlEnableState_t *up)
{
	CALL(device);
	if (link >= LINKS) return NVML_ERROR_INVALID_ARGUMENT;
	if (!g->links[link].present) return NVML_ERROR_NOT_SUPPORTED;
	*up = g->links[link].up ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned int link, unsigned int *version)
{
	CALL(device);
	if (link >= LINKS || !g->links[link].present) return NVML_ERROR_NOT_SUPPORTED;
	*version = g->links[link].version;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci)
{
	CALL(device);
	if (link >= LINKS || !g->links[link].present) return NVML_ERROR_NOT_SUPPORTED;
	if (g->links[link].peer < 0) {
		memset(pci, 0, sizeof *pci); // as in a VM, which hides the switches
		return NVML_SUCCESS;
	}
	busOf(gpu(g->links[link].peer), pci);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device, nvmlDevice_t other, nvmlGpuTopologyLevel_t *level)
{
	CALL(device);
	if (!other.handle) return NVML_ERROR_INVALID_ARGUMENT;
	*level = g->path[other.handle->index];
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t device, nvmlDevice_t other, nvmlGpuP2PCapsIndex_t caps, nvmlGpuP2PStatus_t *status)
{
	CALL(device);
	if (!other.handle || caps != NVML_P2P_CAPS_INDEX_NVLINK) return NVML_ERROR_INVALID_ARGUMENT;
	*status = g->nop2p[other.handle->index] ? NVML_P2P_STATUS_NOT_SUPPORTED : NVML_P2P_STATUS_OK;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t type, nvmlEccCounterType_t counter, unsigned long long *n)
{
	CALL(device);
	(void)counter;
	*n = type == NVML_MEMORY_ERROR_TYPE_UNCORRECTED ? g->ecc : 0;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *use)
{
	CALL(device);
	*use = (nvmlUtilization_t){.gpu = g->usage, .memory = g->usage / 2};
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor, unsigned int *celsius)
{
	CALL(device);
	(void)sensor;
	*celsius = g->celsius;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *milliwatts) { CALL(device); *milliwatts = g->milliwatts; return NVML_SUCCESS; }

nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, nvmlPcieUtilCounter_t counter, unsigned int *kib)
{
	CALL(device);
	*kib = counter == NVML_PCIE_UTIL_TX_BYTES ? 2000 : 1000;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int n, nvmlFieldValue_t *values)
{
	CALL(device);
	for (int i = 0; i < n; i++) {
		nvmlFieldValue_t *v = &values[i];
		unsigned int link = v->scopeId;
		v->nvmlReturn = NVML_SUCCESS;
		v->valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
		switch (v->fieldId) {
#ifndef OLD_DRIVER
		case NVML_FI_DEV_NVLINK_GET_SPEED:
			if (link >= LINKS || !g->links[link].present) {
				v->nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
				break;
			}
			v->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
			v->value.uiVal = g->links[link].mbps;
			break;
#endif
		case NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON:
			v->nvmlReturn = g->links[0].present ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
			v->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
			v->value.uiVal = g->links[0].mbps;
			break;
		case NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX:
		case NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX:
			v->nvmlReturn = g->links[0].present ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
			v->value.ullVal = v->fieldId == NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX ? 4096 : 2048;
			break;
		default:
			v->nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
		}
	}
	return NVML_SUCCESS;
}

static int events; // something to point to

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
	nvmlReturn_t bad = failure(__func__);
	if (bad == NVML_SUCCESS) set->handle = (void *)&events;
	return bad;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) { (void)set; return NVML_SUCCESS; }

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
	CALL(device);
	(void)types;
	(void)set;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout)
{
	nvmlReturn_t bad = failure(__func__);
	(void)set;
	if (bad != NVML_SUCCESS) return bad;
	for (int i = 0; i < GPUS; i++) {
		struct nvmlDevice_st *g = &machine.gpus[i];
		if (!g->present || !g->xid) continue;
		*data = (nvmlEventData_t){.device = {g}, .eventType = nvmlEventTypeXidCriticalError, .eventData = g->xid,
			.gpuInstanceId = 0xFFFFFFFF, .computeInstanceId = 0xFFFFFFFF};
		g->xid = 0;
		return NVML_SUCCESS;
	}
	usleep(timeout * 1000);
	return NVML_ERROR_TIMEOUT;
}

#ifndef OLD_DRIVER

nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link, nvmlIntNvLinkDeviceType_t *type)
{
	CALL(device);
	if (link >= LINKS || !g->links[link].present) return NVML_ERROR_NOT_SUPPORTED;
	*type = g->links[link].peer < 0 ? NVML_NVLINK_DEVICE_TYPE_SWITCH : NVML_NVLINK_DEVICE_TYPE_GPU;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
	CALL(device);
	*current = *pending = g->mig;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count) { CALL(device); *count = MIGS; return NVML_SUCCESS; }

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig)
{
	CALL(device);
	if (index >= MIGS || !machine.mig[g->index][index].present) return NVML_ERROR_NOT_FOUND;
	mig->handle = &machine.mig[g->index][index];
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *correctable, unsigned int *uncorrectable, unsigned int *pending, unsigned int *failed)
{
	CALL(device);
	*correctable = *uncorrectable = 0;
	*pending = g->pending;
	*failed = g->failed;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t *info)
{
	CALL(device);
	if (!g->fabric) return NVML_ERROR_NOT_SUPPORTED;
	nvmlGpuFabricInfo_v2_t *v2 = (nvmlGpuFabricInfo_v2_t *)info; // the head of v3
	memcpy(v2->clusterUuid, g->cluster, 16);
	v2->status = g->status;
	v2->cliqueId = g->clique;
	v2->state = (nvmlGpuFabricState_t)g->state;
	v2->healthMask = 0;
	return NVML_SUCCESS;
}

#endif
