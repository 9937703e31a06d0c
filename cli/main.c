/**
 * h3av, the command line program. It links the library as a stranger would: only <h3av/h3av.h>.
 */
#include <errno.h>
#include <fcntl.h>
#include <h3av/h3av.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "args.h"
#include "batch.h"
#include "progress.h"
#include "prompt.h"
#include "ranks.h"
#include "report.h"
#include "stop.h"

/* Descriptors 0, 1 and 2 that the caller closed would be given to the next files opened, and
 * messages would land in a video. Reading-only, so that a lost standard output is still an error.
 */
static void hold_standard_files(void)
{
    int fd;

    do
        fd = open("/dev/null", O_RDONLY);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0) close(fd);
}

/* What was printed must have arrived; `status` is what the command came to. A reader that has seen
 * enough (head, a pager) is no news, other than to who waits for a file. */
static int close_output(const cli *c, int status)
{
    const bool writes = c->cmd & (CMD_GENERATE | CMD_DECODE | CMD_MUX | CMD_CONVERT | CMD_DUMP);

    if (fflush(stdout) == 0 && !ferror(stdout)) return status;
    if (status) return status;
    if (errno == EPIPE && !writes) return 3;
    fprintf(stderr, "h3av: standard output: %s\n", errno ? strerror(errno) : "write failed");
    return 3;
}

/* Prints a text of the library and frees it. */
static int print_text(const cli *c, h3_status st, char *text)
{
    if (st != H3_OK) return report_failed(c, st);
    fputs(text, stdout);
    if (*text && text[strlen(text) - 1] != '\n') putchar('\n');
    h3_string_free(text);
    return 0;
}

static int run_generate(cli *c)
{
    progress p;
    h3_result rs;
    h3_engine *e = NULL;
    h3_status st;
    char *prompt = NULL;
    int status = prompt_take(c, &prompt); // before there are several to read standard input

    if (status == 0) status = ranks_open(c);
    if (status) {
        free(prompt);
        return status;
    }
    progress_init(&p, c->is_json, c->is_verbose, c->is_quiet);
    c->rq.on_event = progress_event;
    c->rq.user = &p;
    c->engine.has_timing = c->is_verbose;
    if (!c->rq.out_path && !c->rq.frames_dir && !c->rq.wav_path) c->rq.out_path = "h3av.mp4";
    st = h3_engine_open(&e, &c->engine);
    if (st == H3_OK) {
        stop_cancels(e);
        st = c->cmd == CMD_DECODE ? h3_decode(e, c->arg[0], &c->rq, &rs)
                                  : h3_generate(e, &c->rq, &rs);
        stop_cancels(NULL);
    }
    progress_clear(&p);
    status = st == H3_OK ? 0 : report_failed(c, st);
    if (st == H3_OK)
        progress_result(&p, &rs,
                        c->rq.out_path     ? c->rq.out_path
                        : c->rq.frames_dir ? c->rq.frames_dir
                                           : c->rq.wav_path);
    if (st == H3_OK && c->is_verbose && !c->is_json) {
        char *json = NULL;
        if (h3_counters_json(e, &json) == H3_OK) fprintf(stderr, "%s\n", json);
        h3_string_free(json);
    }
    h3_engine_close(&e);
    free(prompt);
    return ranks_close(c, status);
}

/* The ranks that --ranks or a launcher speaks of; for their memory, which only a model has. */
static int plan_ranks(cli *c)
{
    int n = c->ranks;

    if (n == 0 && args_name_model(&c->engine)) (void)h3_launched_rank(&n);
    if (n <= 1) return 0;
    if (!args_name_model(&c->engine))
        return report_said(
            2, "--ranks %d: tells the memory of each, and that takes a model: -m DIR", n);
    const h3_status st = h3_ranks_plan(&c->engine.ranks, n);
    return st == H3_OK ? 0 : report_failed(c, st);
}

static int run_plan(cli *c)
{
    progress p;
    h3_engine *e = NULL;
    char *json = NULL, *prompt = NULL;
    h3_status st = H3_OK;
    int status = prompt_take(c, &prompt);

    if (status == 0) status = plan_ranks(c);
    if (status) {
        free(prompt);
        return status;
    }
    if (args_name_model(&c->engine))
        st = h3_engine_open(&e, &c->engine);
    else if (!c->is_json && !c->is_quiet)
        fprintf(stderr, "planned with the defaults of the released model; -m DIR plans for that "
                        "model and says what memory it takes (-m builtin: for the one built in)\n");
    if (!c->is_json && !c->is_quiet) { // the plan on stdout, its memory for people on stderr
        progress_init(&p, false, false, false);
        c->rq.on_event = progress_event;
        c->rq.user = &p;
    }
    if (st == H3_OK) st = h3_plan_json(e, &c->rq, &json);
    status = print_text(c, st, json);
    h3_engine_close(&e);
    (void)h3_ranks_close(&c->engine.ranks, false);
    free(prompt);
    return status;
}

static int run_bench(cli *c)
{
    h3_engine *e = NULL;
    char *json = NULL;
    h3_status st;
    int status = ranks_open(c);

    if (status) return status;
    c->engine.has_timing = true;
    st = h3_engine_open(&e, &c->engine);
    if (st == H3_OK) {
        stop_cancels(e);
        st = h3_bench(e, &c->bench, &json);
        stop_cancels(NULL);
    }
    status = print_text(c, st, json);
    h3_engine_close(&e);
    return ranks_close(c, status);
}

static h3_file_opts file_opts(const cli *c)
{
    return (h3_file_opts){.qkv = c->engine.qkv,
                          .form = c->form,
                          .layout = c->layout,
                          .mmproj = c->mmproj,
                          .layers = c->text_layers,
                          .head_dim = c->head_dim,
                          .loras = c->engine.loras,
                          .n_loras = c->engine.n_loras,
                          .lora_alpha = c->engine.lora_alpha,
                          .is_strict_lora = c->engine.is_strict_lora,
                          .is_delta = c->is_delta};
}

/* A file is there: said to people, and to programs. */
static int wrote_file(const cli *c, h3_status st, const char *path)
{
    struct stat info;

    if (st != H3_OK) return report_failed(c, st);
    const double bytes = stat(path, &info) == 0 ? (double)info.st_size : 0;
    if (c->is_json) {
        printf("{\"event\":\"done\",\"output\":");
        json_text(path);
        printf(",\"bytes\":%.0f}\n", bytes);
    } else if (!c->is_quiet) {
        fprintf(stderr, bytes < 1e6 ? "%s: %.3g MB\n" : "%s: %.1f MB\n", path, bytes / 1e6);
    }
    return 0;
}

static int run_dump(cli *c)
{
    h3_status st;

    if (!c->output || (!c->tensor && !c->dump_all)) {
        fprintf(stderr, "h3av: dump needs --output FILE and --tensor NAME or --all\n");
        return 2;
    }
    const h3_file_opts opts = file_opts(c);
    st = h3_dump(c->arg[0], c->dump_all ? NULL : c->tensor, &opts, c->output);
    return wrote_file(c, st, c->output);
}

static int run_convert(cli *c)
{
    h3_status st;

    if (!c->output) {
        fprintf(stderr, "h3av: convert needs --output FILE\n");
        return 2;
    }
    const h3_file_opts opts = file_opts(c);
    st = h3_convert_file(c->arg[0], &opts, c->output);
    return wrote_file(c, st, c->output);
}

/* Lines "name  1.234 GB". */
static void print_forms(const cli *c, const char *text)
{
    char name[64];
    double gb;
    int n;

    if (!c->is_json) {
        fputs(text, stdout);
        return;
    }
    for (const char *p = text; sscanf(p, "%63s %lf GB %n", name, &gb, &n) == 2; p += n)
        printf("%s{\"form\":\"%s\",\"gigabytes\":%.3f}", p == text ? "[" : ",\n ", name, gb);
    printf("]\n");
}

static int run_synth(cli *c)
{
    char *text = NULL;
    h3_status st;

    if (strcmp(c->arg[0], "list") == 0) {
        st = h3_synth_list(c->bench.layers, &text);
        if (st == H3_OK) print_forms(c, text);
        h3_string_free(text);
        return st == H3_OK ? 0 : report_failed(c, st);
    }
    if (!c->output) {
        fprintf(stderr, "h3av: synth needs --output FILE\n");
        return 2;
    }
    st = h3_synth(c->arg[0], c->bench.layers, c->rq.seed, c->output);
    return wrote_file(c, st, c->output);
}

static int run_mux(cli *c)
{
    h3_status st;

    if (!c->rq.out_path) {
        fprintf(stderr, "h3av: mux needs --output FILE\n");
        return 2;
    }
    st = h3_mux_files(c->arg[0], c->rq.wav_path, c->mux_fps, &c->rq);
    return wrote_file(c, st, c->rq.out_path);
}

static int run_inspect(cli *c)
{
    char *text = NULL;
    const h3_status st = h3_inspect(c->arg[0], c->is_json, c->is_verbose, &text);
    return print_text(c, st, text);
}

static int run_tokenize(cli *c)
{
    char *text = NULL, *owned = NULL;
    int status = prompt_take(c, &owned);

    if (status == 0) {
        const h3_status st = h3_tokenize(c->engine.tokenizer, c->rq.prompt, &text);
        status = print_text(c, st, text);
    }
    free(owned);
    return status;
}

static int run(cli *c)
{
    if (c->wants_help) {
        args_usage(stdout, c->cmd);
        return 0;
    }
    switch (c->cmd) {
    case CMD_GENERATE:
        return c->batch || c->count ? batch_run(c) : run_generate(c);
    case CMD_DECODE:
        return run_generate(c);
    case CMD_PLAN:
        return run_plan(c);
    case CMD_BENCH:
        return run_bench(c);
    case CMD_DUMP:
        return run_dump(c);
    case CMD_CONVERT:
        return run_convert(c);
    case CMD_SYNTH:
        return run_synth(c);
    case CMD_MUX:
        return run_mux(c);
    case CMD_INSPECT:
        return run_inspect(c);
    case CMD_TOKENIZE:
        return run_tokenize(c);
    case CMD_SERVE:
        return srv_run(&c->serve);
    case CMD_VERSION:
        printf(c->is_json ? "{\"version\":\"%s\"}\n" : "h3av %s\n", h3_version());
        return 0;
    case CMD_HELP:
        if (c->wants_man) {
            args_man(stdout);
            return 0;
        }
        args_usage(stdout, c->n_args ? args_command(c->arg[0]) : CMD_NONE);
        return 0;
    case CMD_NONE:
        args_usage(stdout, c->n_args ? args_command(c->arg[0]) : CMD_NONE);
        return 0;
    }
    return 70;
}

/* x264 alone wants more than 64 kB of stack. Where the system gives little (ulimit -s), commands
 * run on a thread that has enough, and so do the threads of libraries. */
enum { ENOUGH_STACK = 1 << 20, WIDE_STACK = 8 << 20 };

typedef struct errand {
    int (*run)(void *);
    void *what;
    int status;
} errand;

static void *run_errand(void *user)
{
    errand *e = user;
    e->status = e->run(e->what);
    return NULL;
}

static int with_stack(int (*run_it)(void *), void *what)
{
    errand e = {run_it, what, 70};
    struct rlimit lim;
    pthread_attr_t wide;
    pthread_t t;

    if (getrlimit(RLIMIT_STACK, &lim) != 0 || lim.rlim_cur >= ENOUGH_STACK) return run_it(what);
    pthread_attr_init(&wide);
    pthread_attr_setstacksize(&wide, WIDE_STACK);
#ifdef __GLIBC__
    (void)pthread_setattr_default_np(&wide);
#endif
    const bool is_started = pthread_create(&t, &wide, run_errand, &e) == 0;
    pthread_attr_destroy(&wide);
    if (!is_started) return run_it(what);
    pthread_join(t, NULL);
    return e.status;
}

static int run_command(void *c)
{
    return run(c);
}

static int run_worker(void *number)
{
    return srv_worker_main(atoi(number));
}

int main(int argc, char **argv)
{
    static cli c; // large
    int status;

    if (argc == 3 && strcmp(argv[1], "--serve-worker") == 0) // a process of h3av serve's own
        return with_stack(run_worker, argv[2]);
    hold_standard_files();
    ranks_hush();
    status = args_parse(&c, argc, argv);

    if (status == 0 && !ranks_is_idle(&c)) {
        stop_on_signals();
        status = close_output(&c, with_stack(run_command, &c));
    }
    args_free(&c);
    return status;
}
