/*
 * Pages of mapped files that cannot be read from the disk, inside a process that lives on.
 *
 * In place of such a page lies one of an empty file, so an access raises SIGBUS, as a failing disk does. The broker's
 * handler is asked first. If it does nothing, a real process ends there: the access is noted as a violation, the page of
 * the file is put back, and the access goes through. A page that was written by write(2) meanwhile is put back at once.
 *
 * Source: mmap(2), sigaction(2), process_vm_readv(2).
 */

#define _GNU_SOURCE
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

enum { PAGES_MAX = 4096, PAGE = 4096 };

static struct page {
    char *at;
    int fd;
    long offset;
    int touched;
    char before[PAGE];
} pages[PAGES_MAX];
static int page_count, touched_count;
static int nowhere = -1;
static struct sigaction broker;

/* Forget everything: the program before is dead or gone. */
void unreadable_forget(void) { page_count = touched_count = 0; }

int unreadable_touched(void) { return touched_count; }
long unreadable_page(int index) { return (long) (index < page_count && pages[index].touched ? pages[index].offset : -1); }
char *unreadable_address(int index) { return pages[index].at; }
int unreadable_pages(void) { return page_count; }

/* A load in the kernel, which fails without a signal. */
static int can_be_read(const char *at)
{
    char byte;
    struct iovec into = {&byte, 1}, from = {(void *) at, 1};
    return process_vm_readv(getpid(), &into, 1, &from, 1, 0) == 1;
}

static void put_back(struct page *page)
{
    mmap(page->at, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, page->fd, page->offset);
}

/* Say whether a page of a range cannot be read. */
int unreadable_within(const char *base, size_t size)
{
    for (int index = 0; index < page_count; index++)
        if (pages[index].at >= base && pages[index].at < base + size && !can_be_read(pages[index].at))
            return 1;
    return 0;
}

static int was_written(struct page *page)
{
    static char now[PAGE];
    ssize_t size = pread(page->fd, now, PAGE, page->offset);
    return size < 0 || memcmp(now, page->before, (size_t) size) != 0;
}

static void on_unreadable(int number, siginfo_t *info, void *context)
{
    char *at = (char *) ((uintptr_t) info->si_addr & ~((uintptr_t) PAGE - 1));
    struct sigaction current;
    sigaction(SIGBUS, NULL, &current);
    for (int index = page_count - 1; index >= 0; index--)
        if (pages[index].at == at) {
            if (was_written(&pages[index])) {
                put_back(&pages[index]);
                return;
            }
            if ((broker.sa_flags & SA_SIGINFO) && broker.sa_sigaction != NULL)
                broker.sa_sigaction(number, info, context);
            sigaction(SIGBUS, &current, NULL);
            if (!can_be_read(at)) {
                touched_count++;
                pages[index].touched = 1;
                put_back(&pages[index]);
            }
            return;
        }
    signal(SIGBUS, SIG_DFL);
}

/* Make a page of a mapping unreadable. fd: of the file. Returns: 0, or -1 with errno set. */
int unreadable_add(char *at, int fd, long offset)
{
    struct sigaction mine, current;
    if (nowhere < 0)
        nowhere = memfd_create("pyqd-simulation-nothing", MFD_CLOEXEC);
    if (page_count == PAGES_MAX || nowhere < 0)
        return -1;
    sigaction(SIGBUS, NULL, &current);
    if (current.sa_sigaction != on_unreadable) {
        broker = current;
        memset(&mine, 0, sizeof(mine));
        mine.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
        mine.sa_sigaction = on_unreadable;
        sigaction(SIGBUS, &mine, NULL);
    }
    struct page *page = &pages[page_count];
    page->at = at;
    page->fd = fd;
    page->offset = offset;
    page->touched = 0;
    memset(page->before, 0, PAGE);
    if (pread(fd, page->before, PAGE, offset) < 0)
        return -1;
    if (mmap(at, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, nowhere, 0) != at)
        return -1;
    page_count++;
    return 0;
}
