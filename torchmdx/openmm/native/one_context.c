/* Redirects a loaded library's calls of cuCtxCreate and cuCtxDestroy to the device's primary context, which torch uses.
 * By default OpenMM creates a context of its own, and switching between two contexts takes the GPU about 0.3 ms.
 *
 * Only the relocation entries of this library are rewritten; other libraries and the driver are not changed. The driver
 * counts references to the primary context (retain and release); a context that these functions did not return is
 * destroyed as usual. CUDA headers are not needed: handles are opaque and the ABI of these functions is stable.
 *
 * OpenMM also reduces the L1 cache of its context (cuCtxSetCacheConfig: prefer shared memory). In the primary context
 * this would apply to torch's kernels too, of which those that depend on L1 become slower by a quarter or more. In a
 * context returned here the call is therefore ignored.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef int Result;
typedef int Device;
typedef void *Context;

enum { SUCCESS = 0, OUT_OF_MEMORY = 2, MOST_SLOTS = 16, SPIN = 1, SCHEDULING = 7 };

static struct driver {
    Result (*retain)(Context *, Device);
    Result (*release)(Device);
    Result (*push)(Context);
    Result (*set_flags)(Device, unsigned);
    Result (*destroy)(Context);
    Result (*get_current)(Context *);
    Result (*set_cache_config)(int);
} driver;

struct handed_out { Context context; Device device; int count; struct handed_out *next; };
static struct handed_out *table;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct { void **slot; void *before; } patched[MOST_SLOTS];
static int num_patched, num_created, num_destroyed;

static Result hand_out(Context *context, unsigned flags, Device device) {
    /* OpenMM requests spinning if UseBlockingSync is "false", its default. A request for blocking is ignored: it would
     * slow torch down. */
    if ((flags & SCHEDULING) == SPIN && driver.set_flags)
        driver.set_flags(device, SPIN);
    /* Allocated first: a context that is not in the table would be destroyed. */
    struct handed_out *fresh = calloc(1, sizeof *fresh);
    if (!fresh)
        return OUT_OF_MEMORY;
    Result result = driver.retain(context, device);
    if (result == SUCCESS && (result = driver.push(*context)) != SUCCESS)
        driver.release(device);
    if (result != SUCCESS) {
        free(fresh);
        return result;
    }
    pthread_mutex_lock(&lock);
    struct handed_out *entry = table;
    while (entry && entry->context != *context)
        entry = entry->next;
    if (!entry) {
        entry = fresh;
        fresh = NULL;
        entry->context = *context;
        entry->device = device;
        entry->next = table;
        table = entry;
    }
    entry->count++;
    num_created++;
    pthread_mutex_unlock(&lock);
    free(fresh);
    return SUCCESS;
}

static Result create_v4(Context *context, void *parameters, unsigned flags, Device device) {
    (void)parameters;
    return hand_out(context, flags, device);
}

static Result create_v3(Context *context, void *affinity, int count, unsigned flags, Device device) {
    (void)affinity;
    (void)count;
    return hand_out(context, flags, device);
}

static Result create_v2(Context *context, unsigned flags, Device device) { return hand_out(context, flags, device); }

static Result destroy(Context context) {
    int device = -1;
    pthread_mutex_lock(&lock);
    for (struct handed_out *entry = table; entry; entry = entry->next)
        if (entry->context == context && entry->count > 0) {
            entry->count--;
            device = entry->device;
            num_destroyed++;
            break;
        }
    pthread_mutex_unlock(&lock);
    return device < 0 ? driver.destroy(context) : driver.release(device);
}

static Result set_cache_config(int preference) {
    Context context = NULL;
    int ours = 0;
    if (driver.get_current && driver.get_current(&context) == SUCCESS) {
        pthread_mutex_lock(&lock);
        for (struct handed_out *entry = table; entry; entry = entry->next)
            ours |= entry->context == context && entry->count > 0;
        pthread_mutex_unlock(&lock);
    }
    return ours || !driver.set_cache_config ? SUCCESS : driver.set_cache_config(preference);
}

static void *replacement(const char *name) {
    if (!strcmp(name, "cuCtxCreate_v4")) return (void *)create_v4;
    if (!strcmp(name, "cuCtxCreate_v3")) return (void *)create_v3;
    if (!strcmp(name, "cuCtxCreate_v2")) return (void *)create_v2;
    if (!strcmp(name, "cuCtxDestroy_v2")) return (void *)destroy;
    if (!strcmp(name, "cuCtxSetCacheConfig")) return (void *)set_cache_config;
    return NULL;
}

struct search { const char *library; int creates, destroys, failed; };

static void rewrite(void **slot, void *value) {
    long page = sysconf(_SC_PAGESIZE);
    uintptr_t start = (uintptr_t)slot & ~(uintptr_t)(page - 1), end = (uintptr_t)slot + sizeof *slot;
    /* The page may be read-only after loading (RELRO). It stays writable, as lazy binding needs anyway. */
    if (mprotect((void *)start, end - start, PROT_READ | PROT_WRITE) == 0)
        __atomic_store_n(slot, value, __ATOMIC_SEQ_CST);
}

/* Restores all but the first `count` redirected slots. Their pages have been made writable. */
static void undo(int count) {
    while (num_patched > count) {
        num_patched--;
        __atomic_store_n(patched[num_patched].slot, patched[num_patched].before, __ATOMIC_SEQ_CST);
    }
}

static void entries(struct search *s, ElfW(Addr) base, const ElfW(Rela) *rela, size_t size, const ElfW(Sym) *symbols,
                    const char *strings) {
    for (size_t i = 0; i < size / sizeof *rela; i++) {
        const char *name = strings + symbols[ELF64_R_SYM(rela[i].r_info)].st_name;
        void *value = replacement(name);
        void **slot = (void **)(base + rela[i].r_offset);
        if (!value || ELF64_R_SYM(rela[i].r_info) == 0)
            continue;
        s->creates += strstr(name, "Create") != NULL;
        s->destroys += strstr(name, "Destroy") != NULL;
        if (*slot == value)
            continue;
        void *before = *slot;
        if (num_patched < MOST_SLOTS)
            rewrite(slot, value);
        if (*slot != value) {
            s->failed++;
            continue;
        }
        patched[num_patched].slot = slot;
        patched[num_patched++].before = before;
    }
}

static int visit(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size;
    struct search *s = data;
    if (!info->dlpi_name || !strstr(info->dlpi_name, s->library))
        return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type != PT_DYNAMIC)
            continue;
        const ElfW(Rela) *rela = NULL, *jumps = NULL;
        const ElfW(Sym) *symbols = NULL;
        const char *strings = NULL;
        size_t rela_size = 0, jumps_size = 0;
        for (ElfW(Dyn) *d = (ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr); d->d_tag != DT_NULL; d++) {
            /* glibc makes these addresses absolute; other loaders leave them relative. */
            ElfW(Addr) at = d->d_un.d_ptr < info->dlpi_addr ? info->dlpi_addr + d->d_un.d_ptr : d->d_un.d_ptr;
            switch (d->d_tag) {
            case DT_RELA: rela = (void *)at; break;
            case DT_RELASZ: rela_size = d->d_un.d_val; break;
            case DT_JMPREL: jumps = (void *)at; break;
            case DT_PLTRELSZ: jumps_size = d->d_un.d_val; break;
            case DT_SYMTAB: symbols = (void *)at; break;
            case DT_STRTAB: strings = (void *)at; break;
            }
        }
        if (symbols && strings) {
            if (rela) entries(s, info->dlpi_addr, rela, rela_size, symbols, strings);
            if (jumps) entries(s, info->dlpi_addr, jumps, jumps_size, symbols, strings);
        }
    }
    return 0;
}

/* Returns 1 if every call of `library` is redirected, else 0 with a message. cuda: name or path of the driver library. */
int share_context(const char *library, const char *cuda, char *message, int size) {
    void *handle = dlopen(cuda, RTLD_NOW | RTLD_GLOBAL);
    if (!handle) {
        snprintf(message, size, "%s cannot be loaded: %s", cuda, dlerror());
        return 0;
    }
    struct driver found;
    *(void **)&found.retain = dlsym(handle, "cuDevicePrimaryCtxRetain");
    *(void **)&found.release = dlsym(handle, "cuDevicePrimaryCtxRelease_v2");
    *(void **)&found.push = dlsym(handle, "cuCtxPushCurrent_v2");
    *(void **)&found.set_flags = dlsym(handle, "cuDevicePrimaryCtxSetFlags_v2");
    *(void **)&found.destroy = dlsym(handle, "cuCtxDestroy_v2");
    *(void **)&found.get_current = dlsym(handle, "cuCtxGetCurrent");
    *(void **)&found.set_cache_config = dlsym(handle, "cuCtxSetCacheConfig");
    if (!found.retain || !found.release || !found.push || !found.destroy) {
        snprintf(message, size, "%s lacks functions for primary contexts", cuda);
        return 0;
    }
    struct search s = {library, 0, 0, 0};
    pthread_mutex_lock(&lock);
    driver = found;  /* only when complete: slots may be redirected already */
    int first = num_patched;
    dl_iterate_phdr(visit, &s);
    /* All or nothing: if cuCtxDestroy were not redirected, OpenMM would destroy the primary context that torch uses. */
    if (s.failed || !s.creates || !s.destroys)
        undo(first);
    pthread_mutex_unlock(&lock);
    if (!s.creates || !s.destroys) {
        snprintf(message, size, "no loaded library %s that calls cuCtxCreate and cuCtxDestroy was found", library);
        return 0;
    }
    if (s.failed) {
        snprintf(message, size, "the relocation entries of %s cannot be written", library);
        return 0;
    }
    return 1;
}

/* Restores all slots. No Context may exist: destroying it would then destroy the primary context. */
void unshare_context(void) {
    pthread_mutex_lock(&lock);
    undo(0);
    pthread_mutex_unlock(&lock);
}

void context_counts(int *created, int *destroyed) {
    *created = num_created;
    *destroyed = num_destroyed;
}
