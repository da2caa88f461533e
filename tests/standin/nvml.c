/* A stand-in for NVIDIA's management library, for tests only: what pynvml asks of it, answered from a text file.
 *
 * NVML_STANDIN_STATE names that file, one GPU a line, its fields between bars:
 *
 *     00000000:41:00.0|NAME|UUID|BYTES|PERSISTENCE|COMPUTE MODE|MIG MODE, - for none|RETURN CODE OF THE GPU
 *
 * and what of them a vGPU host has, below the GPUs:
 *
 *     vgpu|00000000:41:00.0|TYPE|NAME|BYTES|HEADS|WIDTHxHEIGHT|MOST
 *     mixed|00000000:41:00.0|0, 1, or - where it does not say whether it takes several sizes at a time
 *
 * and its NVLinks, each with its number and what is at its other end:
 *
 *     link|00000000:41:00.0|NUMBER|00000000:42:00.0
 *
 * and the errors that NVML reports of them, each once, in this order:
 *
 *     xid|00000000:41:00.0|79
 *
 * and the processes that use them, all the time in this percentage, and with these bytes of memory, 0 where it is not
 * there:
 *
 *     process|00000000:41:00.0|PID|PERCENT|BYTES
 *
 * A GPU that has neither of the lines for a vGPU host is no vGPU host's. With the second alone it has no types.
 *
 * A return code other than 0 (15: the GPU is lost) is the answer to all that is asked of that GPU; its handle and its
 * PCI address are still given where the code is negative. A mode that is set is written back, so that the next process
 * finds it.
 *
 * NVML_STANDIN_FAULTS is a list like nvmlInitWithFlags=hang,nvmlDeviceSetPersistenceMode=4: a function that never
 * returns and heeds no signal but SIGKILL, or one that returns that code; `=forget` makes a set succeed and do nothing.
 *
 * Names, codes and structures are those of nvml.h; nothing of NVIDIA's is in it.
 */

#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, FAILED = 999 };
enum { VERSION_MISMATCH = 25, TIMEOUT = 10 };
enum { MOST_GPUS = 16, MOST_TYPES = 256, MODES = 3, PERSISTENCE = 0, COMPUTE = 1, MIG = 2, NO_MODE = -1 };

typedef struct {
    char bus[32], name[96], uuid[96];
    unsigned long long bytes;
    int modes[MODES];
    int code;
    int is_vgpu_host, mixed;
} Gpu;

typedef struct {
    Gpu *gpu;
    unsigned id, heads, width, height, most;
    unsigned long long bytes;
    char name[64];
} Type;

typedef struct {
    Gpu *gpu;
    unsigned number;
    char other[32];
} Link;

typedef struct {
    Gpu *gpu;
    unsigned long long number;
} Xid;

typedef struct {
    Gpu *gpu;
    unsigned pid, percent;
    unsigned long long bytes;
} Process;

typedef struct { /* nvmlProcessInfo_t, since NVML 11 */
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
} ProcessInfo;

typedef struct { /* nvmlProcessUtilizationSample_t */
    unsigned pid;
    unsigned long long at;
    unsigned sm, memory, encoder, decoder;
} Sample;

typedef struct { int is_registered[MOST_GPUS]; } EventSet;

typedef struct { /* nvmlEventData_t */
    Gpu *gpu;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
} EventData;

typedef struct { /* nvmlPciInfo_t, since NVML 9 */
    char bus_id_legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} PciInfo;

typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;

typedef struct { unsigned version, mode; } HeterogeneousMode;

static Gpu gpus[MOST_GPUS];
static unsigned count;
static Type types[MOST_TYPES];
static unsigned type_count;
static Link links[MOST_TYPES];
static unsigned link_count;
static Xid xids[MOST_TYPES];
static unsigned xid_count;
static Process processes[MOST_TYPES];
static unsigned process_count;
static int started;

static void hang(void)
{
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    for (;;)
        pause();
}

/* The text behind `function=` among the faults, or NULL. */
static const char *fault(const char *function)
{
    const char *at = getenv("NVML_STANDIN_FAULTS");
    size_t length = strlen(function);
    while (at && *at) {
        if (strncmp(at, function, length) == 0 && at[length] == '=')
            return at + length + 1;
        at = strchr(at, ',');
        at = at ? at + 1 : NULL;
    }
    return NULL;
}

static int begin(const char *function)
{
    const char *told = fault(function);
    if (told && strncmp(told, "hang", 4) == 0)
        hang();
    return told ? atoi(told) : SUCCESS;
}

static int mode(const char *text)
{
    return *text == '-' ? NO_MODE : atoi(text);
}

static int take(char *line, Gpu *gpu)
{
    char *fields[8], *rest = line;
    for (int n = 0; n < 8; n++)
        if (!(fields[n] = strsep(&rest, "|")))
            return 0;
    snprintf(gpu->bus, sizeof gpu->bus, "%s", fields[0]);
    snprintf(gpu->name, sizeof gpu->name, "%s", fields[1]);
    snprintf(gpu->uuid, sizeof gpu->uuid, "%s", fields[2]);
    gpu->bytes = strtoull(fields[3], NULL, 10);
    for (int n = 0; n < MODES; n++)
        gpu->modes[n] = mode(fields[4 + n]);
    gpu->code = atoi(fields[7]);
    gpu->is_vgpu_host = 0;
    gpu->mixed = NO_MODE;
    return 1;
}

static Gpu *on_bus(const char *bus)
{
    for (unsigned n = 0; n < count; n++)
        if (strcasecmp(gpus[n].bus, bus) == 0)
            return &gpus[n];
    return NULL;
}

static void take_type(const char *line)
{
    char bus[32];
    Type *type = &types[type_count];
    if (type_count == MOST_TYPES
        || sscanf(line, "vgpu|%31[^|]|%u|%63[^|]|%llu|%u|%ux%u|%u", bus, &type->id, type->name, &type->bytes,
                  &type->heads, &type->width, &type->height, &type->most) != 8
        || !(type->gpu = on_bus(bus)))
        return;
    type->gpu->is_vgpu_host = 1;
    type_count++;
}

static void take_link(const char *line)
{
    char bus[32];
    Link *link = &links[link_count];
    if (link_count < MOST_TYPES
        && sscanf(line, "link|%31[^|]|%u|%31[^|\n]", bus, &link->number, link->other) == 3
        && (link->gpu = on_bus(bus)))
        link_count++;
}

static void take_xid(const char *line)
{
    char bus[32];
    Xid *xid = &xids[xid_count];
    if (xid_count < MOST_TYPES && sscanf(line, "xid|%31[^|]|%llu", bus, &xid->number) == 2
        && (xid->gpu = on_bus(bus)))
        xid_count++;
}

static void take_process(const char *line)
{
    char bus[32];
    Process *process = &processes[process_count];
    if (process_count < MOST_TYPES
        && sscanf(line, "process|%31[^|]|%u|%u|%llu", bus, &process->pid, &process->percent, &process->bytes) >= 3
        && (process->gpu = on_bus(bus)))
        process_count++;
}

static void take_mixed(const char *line)
{
    char bus[32], text[8];
    Gpu *gpu;
    if (sscanf(line, "mixed|%31[^|]|%7s", bus, text) != 2 || !(gpu = on_bus(bus)))
        return;
    gpu->is_vgpu_host = 1;
    gpu->mixed = mode(text);
}

static int load(void)
{
    const char *name = getenv("NVML_STANDIN_STATE");
    FILE *file = name ? fopen(name, "r") : NULL;
    char line[512];
    if (!file)
        return FAILED;
    for (count = type_count = link_count = xid_count = process_count = 0; fgets(line, sizeof line, file);)
        if (strncmp(line, "vgpu|", 5) == 0)
            take_type(line);
        else if (strncmp(line, "mixed|", 6) == 0)
            take_mixed(line);
        else if (strncmp(line, "link|", 5) == 0)
            take_link(line);
        else if (strncmp(line, "xid|", 4) == 0)
            take_xid(line);
        else if (strncmp(line, "process|", 8) == 0)
            take_process(line);
        else if (count < MOST_GPUS)
            count += take(line, &gpus[count]);
    fclose(file);
    return SUCCESS;
}

static int save(void)
{
    FILE *file = fopen(getenv("NVML_STANDIN_STATE"), "w");
    if (!file)
        return FAILED;
    for (unsigned n = 0; n < count; n++) {
        Gpu *gpu = &gpus[n];
        fprintf(file, "%s|%s|%s|%llu", gpu->bus, gpu->name, gpu->uuid, gpu->bytes);
        for (int m = 0; m < MODES; m++)
            fprintf(file, gpu->modes[m] == NO_MODE ? "|-" : "|%d", gpu->modes[m]);
        fprintf(file, "|%d\n", gpu->code);
    }
    for (unsigned n = 0; n < count; n++)
        if (gpus[n].is_vgpu_host)
            fprintf(file, gpus[n].mixed == NO_MODE ? "mixed|%s|-\n" : "mixed|%s|%d\n", gpus[n].bus, gpus[n].mixed);
    for (Type *type = types; type < types + type_count; type++)
        fprintf(file, "vgpu|%s|%u|%s|%llu|%u|%ux%u|%u\n", type->gpu->bus, type->id, type->name, type->bytes,
                type->heads, type->width, type->height, type->most);
    for (Link *link = links; link < links + link_count; link++)
        fprintf(file, "link|%s|%u|%s\n", link->gpu->bus, link->number, link->other);
    return fclose(file) ? FAILED : SUCCESS;
}

/* What comes before an answer about a GPU: the function's fault, or the GPU's own. */
static int ask(const char *function, Gpu *gpu)
{
    int code = begin(function);
    if (code)
        return code;
    if (!started)
        return UNINITIALIZED;
    return gpu->code < 0 ? -gpu->code : gpu->code;
}

static int copy(const char *text, char *to, unsigned size)
{
    return snprintf(to, size, "%s", text) < (int)size ? SUCCESS : TOO_SMALL;
}

/* -- the library itself ------------------------------------------------------------------------------------------ */

int nvmlInitWithFlags(unsigned flags)
{
    int code = begin("nvmlInitWithFlags");
    (void)flags;
    if (code == SUCCESS && (code = load()) == SUCCESS)
        started = 1;
    return code;
}

int nvmlInit_v2(void)
{
    int code = begin("nvmlInit_v2");
    return code ? code : nvmlInitWithFlags(0);
}

int nvmlShutdown(void)
{
    started = 0;
    return begin("nvmlShutdown");
}

const char *nvmlErrorString(int code)
{
    static char text[32];
    snprintf(text, sizeof text, "stand-in's code %d", code);
    return text;
}

/* -- GPUs -------------------------------------------------------------------------------------------------------- */

int nvmlDeviceGetCount_v2(unsigned *number)
{
    int code = begin("nvmlDeviceGetCount_v2");
    *number = count;
    return code ? code : started ? SUCCESS : UNINITIALIZED;
}

static int handle(const char *function, unsigned index, Gpu **gpu)
{
    int code = begin(function);
    if (code || !started)
        return code ? code : UNINITIALIZED;
    if (index >= count)
        return INVALID_ARGUMENT;
    *gpu = &gpus[index];
    return gpus[index].code > 0 ? gpus[index].code : SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Gpu **gpu)
{
    return handle("nvmlDeviceGetHandleByIndex_v2", index, gpu);
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, Gpu **gpu)
{
    Gpu *found = on_bus(bus);
    if (found)
        return handle("nvmlDeviceGetHandleByPciBusId_v2", (unsigned)(found - gpus), gpu);
    return started ? NOT_FOUND : UNINITIALIZED;
}

int nvmlDeviceGetPciInfo_v3(Gpu *gpu, PciInfo *info)
{
    int code = begin("nvmlDeviceGetPciInfo_v3");
    memset(info, 0, sizeof *info);
    sscanf(gpu->bus, "%x:%x:%x", &info->domain, &info->bus, &info->device);
    return code ? code : copy(gpu->bus, info->bus_id, sizeof info->bus_id);
}

int nvmlDeviceGetName(Gpu *gpu, char *name, unsigned size)
{
    int code = ask("nvmlDeviceGetName", gpu);
    return code ? code : copy(gpu->name, name, size);
}

int nvmlDeviceGetUUID(Gpu *gpu, char *uuid, unsigned size)
{
    int code = ask("nvmlDeviceGetUUID", gpu);
    return code ? code : copy(gpu->uuid, uuid, size);
}

int nvmlDeviceGetMemoryInfo(Gpu *gpu, Memory *memory)
{
    *memory = (Memory){gpu->bytes, gpu->bytes, 0};
    return ask("nvmlDeviceGetMemoryInfo", gpu);
}

int nvmlDeviceGetMemoryInfo_v2(Gpu *gpu, MemoryV2 *memory)
{
    *memory = (MemoryV2){memory->version, gpu->bytes, 0, gpu->bytes, 0};
    return ask("nvmlDeviceGetMemoryInfo_v2", gpu);
}

static int get(const char *function, Gpu *gpu, int which, unsigned *value)
{
    int code = ask(function, gpu);
    if (code)
        return code;
    if (gpu->modes[which] == NO_MODE)
        return NOT_SUPPORTED;
    *value = (unsigned)gpu->modes[which];
    return SUCCESS;
}

int nvmlDeviceGetPersistenceMode(Gpu *gpu, unsigned *value)
{
    return get("nvmlDeviceGetPersistenceMode", gpu, PERSISTENCE, value);
}

static int set(const char *function, Gpu *gpu, int which, unsigned value)
{
    const char *told = fault(function);
    int code = ask(function, gpu);
    if (code || (told && strncmp(told, "forget", 6) == 0))
        return code;
    gpu->modes[which] = (int)value;
    return save();
}

int nvmlDeviceSetPersistenceMode(Gpu *gpu, unsigned value)
{
    return set("nvmlDeviceSetPersistenceMode", gpu, PERSISTENCE, value);
}

int nvmlDeviceSetComputeMode(Gpu *gpu, unsigned value)
{
    return set("nvmlDeviceSetComputeMode", gpu, COMPUTE, value);
}

int nvmlDeviceGetComputeMode(Gpu *gpu, unsigned *value)
{
    return get("nvmlDeviceGetComputeMode", gpu, COMPUTE, value);
}

int nvmlDeviceGetMigMode(Gpu *gpu, unsigned *current, unsigned *pending)
{
    *pending = gpu->modes[MIG] == NO_MODE ? 0 : (unsigned)gpu->modes[MIG];
    return get("nvmlDeviceGetMigMode", gpu, MIG, current);
}

/* -- NVLinks ------------------------------------------------------------------------------------------------------ */

enum { MOST_LINKS = 18 };

static Link *link_of(Gpu *gpu, unsigned number)
{
    for (Link *link = links; link < links + link_count; link++)
        if (link->gpu == gpu && link->number == number)
            return link;
    return NULL;
}

int nvmlDeviceGetNvLinkState(Gpu *gpu, unsigned number, unsigned *active)
{
    int code = ask("nvmlDeviceGetNvLinkState", gpu);
    if (code)
        return code;
    *active = link_of(gpu, number) != NULL;
    return number < MOST_LINKS ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(Gpu *gpu, unsigned number, PciInfo *info)
{
    Link *link = link_of(gpu, number);
    int code = ask("nvmlDeviceGetNvLinkRemotePciInfo_v2", gpu);
    if (code)
        return code;
    if (!link)
        return NOT_SUPPORTED;
    memset(info, 0, sizeof *info);
    return copy(link->other, info->bus_id, sizeof info->bus_id);
}

/* -- events ------------------------------------------------------------------------------------------------------- */

enum { XID_CRITICAL_ERROR = 8 };

int nvmlEventSetCreate(EventSet **set)
{
    int code = begin("nvmlEventSetCreate");
    *set = calloc(1, sizeof **set);
    return code;
}

int nvmlEventSetFree(EventSet *set)
{
    free(set);
    return begin("nvmlEventSetFree");
}

int nvmlDeviceRegisterEvents(Gpu *gpu, unsigned long long events, EventSet *set)
{
    int code = ask("nvmlDeviceRegisterEvents", gpu);
    set->is_registered[gpu - gpus] = code == SUCCESS && events == XID_CRITICAL_ERROR;
    return code;
}

/* Gives each error of a registered GPU once, and then sleeps, as one that waits for the next error does. */
int nvmlEventSetWait_v2(EventSet *set, EventData *data, unsigned milliseconds)
{
    static unsigned next;
    int code = begin("nvmlEventSetWait_v2");
    if (code)
        return code;
    while (next < xid_count) {
        Xid *xid = &xids[next++];
        if (set->is_registered[xid->gpu - gpus]) {
            *data = (EventData){xid->gpu, XID_CRITICAL_ERROR, xid->number, ~0u, ~0u};
            return SUCCESS;
        }
    }
    usleep(milliseconds * 1000ul);
    return TIMEOUT;
}

/* -- samples of processes ------------------------------------------------------------------------------------------ */

int nvmlDeviceGetProcessUtilization(Gpu *gpu, Sample *samples, unsigned *number, unsigned long long last)
{
    unsigned room = *number;
    struct timespec now;
    unsigned long long at;
    int code = ask("nvmlDeviceGetProcessUtilization", gpu);
    if (code)
        return code;
    clock_gettime(CLOCK_REALTIME, &now);
    at = now.tv_sec * 1000000ull + now.tv_nsec / 1000;
    *number = 0;
    for (Process *process = processes; at > last && process < processes + process_count; process++)
        if (process->gpu == gpu && (*number)++ < room && samples)
            samples[*number - 1] = (Sample){process->pid, at, process->percent, 0, 0, 0};
    if (!*number)
        return NOT_FOUND;
    return *number > room ? TOO_SMALL : SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(Gpu *gpu, unsigned *number, ProcessInfo *infos)
{
    unsigned room = *number;
    int code = ask("nvmlDeviceGetComputeRunningProcesses_v3", gpu);
    if (code)
        return code;
    *number = 0;
    for (Process *process = processes; process < processes + process_count; process++)
        if (process->gpu == gpu && (*number)++ < room && infos)
            infos[*number - 1] = (ProcessInfo){process->pid, process->bytes, 0, 0};
    return *number > room ? TOO_SMALL : SUCCESS;
}

/* As NVML does it, a process that computes and draws is among both. */
int nvmlDeviceGetGraphicsRunningProcesses_v3(Gpu *gpu, unsigned *number, ProcessInfo *infos)
{
    return nvmlDeviceGetComputeRunningProcesses_v3(gpu, number, infos);
}

/* -- types of vGPUs ---------------------------------------------------------------------------------------------- */

int nvmlDeviceGetSupportedVgpus(Gpu *gpu, unsigned *number, unsigned *ids)
{
    unsigned room = *number;
    int code = ask("nvmlDeviceGetSupportedVgpus", gpu);
    if (code)
        return code;
    if (!gpu->is_vgpu_host)
        return NOT_SUPPORTED;
    *number = 0;
    for (Type *type = types; type < types + type_count; type++)
        if (type->gpu == gpu && (*number)++ < room)
            ids[*number - 1] = type->id;
    return *number > room ? TOO_SMALL : SUCCESS;
}

/* What comes before an answer about a type, which is the same on every GPU. */
static int ask_of(const char *function, unsigned id, Type **found)
{
    int code = begin(function);
    if (code || !started)
        return code ? code : UNINITIALIZED;
    for (*found = types; *found < types + type_count; ++*found)
        if ((*found)->id == id)
            return SUCCESS;
    return INVALID_ARGUMENT;
}

int nvmlVgpuTypeGetName(unsigned id, char *name, unsigned *size)
{
    Type *type;
    int code = ask_of("nvmlVgpuTypeGetName", id, &type);
    return code ? code : copy(type->name, name, *size);
}

int nvmlVgpuTypeGetFramebufferSize(unsigned id, unsigned long long *bytes)
{
    Type *type;
    int code = ask_of("nvmlVgpuTypeGetFramebufferSize", id, &type);
    if (code == SUCCESS)
        *bytes = type->bytes;
    return code;
}

int nvmlVgpuTypeGetNumDisplayHeads(unsigned id, unsigned *heads)
{
    Type *type;
    int code = ask_of("nvmlVgpuTypeGetNumDisplayHeads", id, &type);
    if (code == SUCCESS)
        *heads = type->heads;
    return code;
}

int nvmlVgpuTypeGetResolution(unsigned id, unsigned head, unsigned *width, unsigned *height)
{
    Type *type;
    int code = ask_of("nvmlVgpuTypeGetResolution", id, &type);
    if (code || head >= type->heads)
        return code ? code : INVALID_ARGUMENT;
    *width = type->width;
    *height = type->height;
    return SUCCESS;
}

int nvmlVgpuTypeGetMaxInstances(Gpu *gpu, unsigned id, unsigned *most)
{
    int code = ask("nvmlVgpuTypeGetMaxInstances", gpu);
    for (Type *type = types; code == SUCCESS && type < types + type_count; type++)
        if (type->gpu == gpu && type->id == id) {
            *most = type->most;
            return SUCCESS;
        }
    return code ? code : INVALID_ARGUMENT;
}

int nvmlDeviceGetVgpuHeterogeneousMode(Gpu *gpu, HeterogeneousMode *asked)
{
    int code = ask("nvmlDeviceGetVgpuHeterogeneousMode", gpu);
    if (code)
        return code;
    if (asked->version != (sizeof *asked | 1u << 24))
        return VERSION_MISMATCH;
    if (gpu->mixed == NO_MODE)
        return NOT_SUPPORTED;
    asked->mode = (unsigned)gpu->mixed;
    return SUCCESS;
}
