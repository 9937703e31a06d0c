/** See stop.h. */
#include "stop.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

static h3_engine *volatile running; // what Ctrl-C stops
static volatile sig_atomic_t n_asked;

void stop_cancels(h3_engine *e)
{
    running = e;
}

bool stop_is_asked(void)
{
    return n_asked > 0;
}

static void on_signal(int sig)
{
    h3_engine *e = running;

    if (e) h3_cancel(e);
    n_asked = n_asked + 1;
    if (!e || n_asked > 2) { // nothing to stop gently, or the user insists
        h3_drop_partial_files();
        signal(sig, SIG_DFL);
        raise(sig);
    }
}

/* Model files are read through memory maps: one that gets shorter meanwhile, or a disk that fails,
 * shows as this signal. There is nothing to go back to. */
static void on_lost_page(int sig)
{
    static const char text[] =
        "\nh3av: a file became shorter, or its disk failed, while it was read\n";

    (void)sig;
    if (write(STDERR_FILENO, text, sizeof text - 1) < 0) _exit(3);
    h3_drop_partial_files();
    _exit(3);
}

void stop_on_signals(void)
{
    struct sigaction sa;

    memset(&sa, 0, sizeof sa);
    sa.sa_handler = on_signal;
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
    sigaction(SIGHUP, &sa, NULL);
    sa.sa_handler = on_lost_page;
    sigaction(SIGBUS, &sa, NULL);
    signal(SIGPIPE, SIG_IGN); // a write that fails says more than a dead process
    signal(SIGXFSZ, SIG_IGN);
}
