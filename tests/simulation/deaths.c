/*
 * Death of a process at any store into its mapped files, inside a process that lives on.
 *
 * While armed, the mappings are write-protected. A store faults; the handler counts it, unprotects the page and lets the
 * processor trap after this one instruction, then protects the page again. At the store that was asked for, and in
 * `die`, every mapping is replaced by a copy of its content: the files keep the bytes of this moment, and all that the
 * dead program stores from here on goes to memory that nobody sees. A page that the program has replaced because the
 * disk cannot read it keeps the program's bytes, which are in no file. Descriptors for writing are pointed at the
 * copies, so that the dead program finds what it has written; if their file is not mapped, at /dev/null. What clients
 * had been sent by then is noted: what comes later was never sent.
 *
 * Only for x86-64 and Linux, in a process of one thread. Source: sigaction(2), mmap(2); EFLAGS.TF.
 */

#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <ucontext.h>
#include <unistd.h>

enum { MAPPINGS_MAX = 4096, SOCKETS_MAX = 64, OPEN_PAGES_MAX = 8, TRAP_FLAG = 0x100 };
static const uintptr_t PAGE = 4096;

struct range {
    char *base;
    size_t size;
    int fd;
    int copy; /* after the death: the copy of the content; -1 before */
};

static struct range mappings[MAPPINGS_MAX];
static int mapping_count;
static int sockets[SOCKETS_MAX], sent_bytes[SOCKETS_MAX], socket_count;
static struct writer {
    int fd;
    unsigned long file;
} writers[MAPPINGS_MAX];
static int writer_count;

static volatile long stores_left; /* until death; 0: no death is due */
static volatile int armed, dead;
static volatile long store_count;
static char *open_pages[OPEN_PAGES_MAX];
static int open_page_count;
static uintptr_t stepped_at;
static struct sigaction former_fault, former_trap;
/* Of the broker's arena (pyx/diskqueue/arena.pyx), which unmaps files that are not in use; NULL: no file is mapped
   there. */
enum { ABSENT, PRESENT, GUARDED };
static int (*arena_state)(const char *at);
static void (*arena_on_fault)(int number, siginfo_t *info, void *context);
static int64_t *arena_refused;
static void on_fault(int number, siginfo_t *info, void *context);

static int is_accessible(const char *at)
{
    int state = arena_state == NULL ? -1 : arena_state(at);
    return state != ABSENT && state != GUARDED;
}

int deaths_add(char *base, size_t size, int fd)
{
    if (mapping_count == MAPPINGS_MAX)
        return -1;
    mappings[mapping_count++] = (struct range){base, size, fd, -1};
    if (armed)
        mprotect(base, size, PROT_READ);
    return 0;
}

/* file: the number of the inode, as the descriptor's number may be given to another file meanwhile. */
int deaths_add_writer(int fd, unsigned long file)
{
    if (writer_count == MAPPINGS_MAX)
        return -1;
    writers[writer_count++] = (struct writer){fd, file};
    return 0;
}

/* Forget everything: the program before is dead or gone. */
void deaths_forget(void)
{
    for (int index = 0; index < mapping_count; index++)
        if (mappings[index].copy >= 0)
            close(mappings[index].copy);
    mapping_count = writer_count = socket_count = 0;
    dead = 0;
}

void deaths_watch_sockets(const int *fds, int count)
{
    socket_count = count < SOCKETS_MAX ? count : SOCKETS_MAX;
    memcpy(sockets, fds, (size_t) socket_count * sizeof(int));
}

void deaths_again(void);
/* Of a client that came after the watch began, nothing is known to have been sent. */
int deaths_sent(int index) { return index < socket_count ? sent_bytes[index] : 0; }
int deaths_dead(void) { return dead; }
long deaths_stores(void) { return store_count; }

static void copy_content(struct range *each)
{
    each->copy = memfd_create("pyqd-dead", MFD_CLOEXEC);
    char *content = mmap(NULL, each->size, PROT_READ, MAP_SHARED, each->fd, 0);
    if (each->copy < 0 || content == MAP_FAILED || ftruncate(each->copy, (off_t) each->size) != 0)
        abort();
    for (size_t done = 0; done < each->size;) {
        size_t left = each->size - done, in_page = PAGE - done % PAGE;
        ssize_t written = pwrite(each->copy, each->base + done, left, (off_t) done);
        /* write(2) fails without a signal at a page that is unmapped, guarded or unreadable. */
        if (written <= 0)
            written = pwrite(each->copy, content + done, left < in_page ? left : in_page, (off_t) done);
        if (written <= 0)
            abort();
        done += (size_t) written;
    }
    munmap(content, each->size);
}

static void map_copy(struct range *each)
{
    if (each->copy < 0)
        copy_content(each);
    mmap(each->base, each->size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, each->copy, 0);
}

/* The copy of a file, by the number of its inode; -1 if the file is not mapped. */
static int copy_of(unsigned long file)
{
    struct stat found;
    for (int index = 0; index < mapping_count; index++)
        if (fstat(mappings[index].fd, &found) == 0 && found.st_ino == file)
            return mappings[index].copy;
    return -1;
}

void deaths_die(void)
{
    if (dead)
        return;
    dead = 1;
    for (int index = 0; index < mapping_count; index++)
        map_copy(&mappings[index]);
    /* Nothing is mapped again from here on: it would be the file. */
    if (arena_refused != NULL)
        *arena_refused = INT64_MAX;
    struct stat found;
    int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    for (int index = 0; index < writer_count; index++)
        if (fstat(writers[index].fd, &found) == 0 && found.st_ino == writers[index].file) {
            int copy = copy_of(writers[index].file);
            dup2(copy < 0 ? nowhere : copy, writers[index].fd);
        }
    close(nowhere);
    for (int index = 0; index < socket_count; index++)
        if (ioctl(sockets[index], FIONREAD, &sent_bytes[index]) != 0)
            sent_bytes[index] = 0;
}

static struct range *range_of(char *at)
{
    for (int index = 0; index < mapping_count; index++)
        if (at >= mappings[index].base && at < mappings[index].base + mappings[index].size)
            return &mappings[index];
    return NULL;
}

/* Have the arena map a file again. If it cannot, the process ends, as a kill would end it. */
static void map_again(struct range *range, int number, siginfo_t *info, void *context)
{
    if (range == NULL) {
        /* Of an earlier process. */
        char *page = (char *) ((uintptr_t) info->si_addr & ~(PAGE - 1));
        mmap(page, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        return;
    }
    if (!dead)
        arena_on_fault(number, info, context);
    if (dead) {
        map_copy(range);
    } else if (!is_accessible(info->si_addr)) {
        armed = 0;
        deaths_die();
    } else if (armed) {
        mprotect(range->base, range->size, PROT_READ);
    }
    deaths_again();
}

static void on_fault(int number, siginfo_t *info, void *context)
{
    ucontext_t *state = context;
    char *at = info->si_addr;
    struct range *range = range_of(at);
    if (!is_accessible(at)) {
        map_again(range, number, info, context);
        return;
    }
    if (!armed || range == NULL) {
        /* Not ours: let it happen again with the handler of before. */
        sigaction(number, &former_fault, NULL);
        return;
    }
    uintptr_t instruction = (uintptr_t) state->uc_mcontext.gregs[REG_RIP];
    if (open_page_count == 0) {
        store_count++;
        if (stores_left > 0 && --stores_left == 0) {
            armed = 0;
            deaths_die();
            return;
        }
        stepped_at = instruction;
    }
    char *page = (char *) ((uintptr_t) at & ~(PAGE - 1));
    mprotect(page, PAGE, PROT_READ | PROT_WRITE);
    if (open_page_count < OPEN_PAGES_MAX)
        open_pages[open_page_count++] = page;
    state->uc_mcontext.gregs[REG_EFL] |= TRAP_FLAG;
}

static void on_trap(int number, siginfo_t *info, void *context)
{
    ucontext_t *state = context;
    (void) number;
    (void) info;
    /* A string instruction traps after each of its rounds: it counts as one store. */
    if (armed && (uintptr_t) state->uc_mcontext.gregs[REG_RIP] == stepped_at)
        return;
    state->uc_mcontext.gregs[REG_EFL] &= ~(greg_t) TRAP_FLAG;
    if (armed)
        for (int index = 0; index < open_page_count; index++)
            mprotect(open_pages[index], PAGE, PROT_READ);
    open_page_count = 0;
}

/* Die at the nth store from now on, into the mappings that there are and those that come. */
void deaths_arm(long nth)
{
    struct sigaction action;
    memset(&action, 0, sizeof(action));
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    action.sa_sigaction = on_fault;
    if (arena_state == NULL)
        sigaction(SIGSEGV, &action, &former_fault);
    action.sa_sigaction = on_trap;
    sigaction(SIGTRAP, &action, &former_trap);
    stores_left = nth;
    store_count = 0;
    open_page_count = 0;
    armed = 1;
    for (int index = 0; index < mapping_count; index++)
        if (is_accessible(mappings[index].base))
            mprotect(mappings[index].base, mappings[index].size, PROT_READ);
    /* A start that finds no topic maps no file after it has begun to load them. */
    deaths_again();
}

/* Be the first again to handle faults: the arena has put its handler before when it mapped a file. */
void deaths_again(void)
{
    struct sigaction action, current;
    sigaction(SIGSEGV, NULL, &current);
    if ((!armed && arena_state == NULL) || current.sa_sigaction == on_fault)
        return;
    memset(&action, 0, sizeof(action));
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    action.sa_sigaction = on_fault;
    sigaction(SIGSEGV, &action, NULL);
}

/* Handle the faults of the arena's files, from its functions as pyqd.hot.diskqueue.arena gives them; all 0: no more. */
void deaths_follow(uintptr_t state, uintptr_t handler, uintptr_t refused)
{
    if (arena_state == NULL && state != 0)
        sigaction(SIGSEGV, NULL, &former_fault);
    else if (arena_state != NULL && state == 0)
        sigaction(SIGSEGV, &former_fault, NULL);
    arena_state = (int (*)(const char *)) state;
    arena_on_fault = (void (*)(int, siginfo_t *, void *)) handler;
    arena_refused = (int64_t *) refused;
    deaths_again();
}

void deaths_disarm(void)
{
    if (armed)
        for (int index = 0; index < mapping_count; index++)
            if (is_accessible(mappings[index].base))
                mprotect(mappings[index].base, mappings[index].size, PROT_READ | PROT_WRITE);
    armed = 0;
    stores_left = 0;
    if (arena_state == NULL)
        sigaction(SIGSEGV, &former_fault, NULL);
    sigaction(SIGTRAP, &former_trap, NULL);
}
