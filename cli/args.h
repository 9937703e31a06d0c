/**
 * Command line options of h3av: one table drives parsing, --help, the man page's option list and
 * the completeness test.
 */
#ifndef H3_CLI_ARGS_H
#define H3_CLI_ARGS_H

#include <h3av/h3av.h>
#include <stdio.h>

#include "server.h"

enum { MAX_REFS = 64, MAX_LORAS = 16, MAX_ROWS = 16, MAX_SIGMAS = 1024 };

/** Commands as bits: an option says where it is allowed. */
typedef enum command {
    CMD_NONE = 0,
    CMD_GENERATE = 1 << 0,
    CMD_PLAN = 1 << 1,
    CMD_INSPECT = 1 << 2,
    CMD_TOKENIZE = 1 << 3,
    CMD_DECODE = 1 << 4,
    CMD_MUX = 1 << 5,
    CMD_BENCH = 1 << 6,
    CMD_DUMP = 1 << 7,
    CMD_HELP = 1 << 8,
    CMD_VERSION = 1 << 9,
    CMD_CONVERT = 1 << 10,
    CMD_SERVE = 1 << 11,
    CMD_SYNTH = 1 << 12
} command;

typedef struct cli {
    command cmd;
    h3_engine_opts engine;
    h3_request rq;
    h3_bench_opts bench;
    srv_opts serve;
    h3_input first, last, refs[MAX_REFS];
    h3_lora_file loras[MAX_LORAS];
    int64_t rows[MAX_ROWS];
    float sigmas[MAX_SIGMAS];
    double ref_fps, mux_fps;
    const char *prompt_file, *form, *tensor, *output, *gpus, *batch;
    const char *layout; ///< convert: "own", "original" or "diffusers"
    const char *mmproj; ///< dump, convert: vision file of an encoder
    int text_layers, head_dim;
    int count; ///< videos of one request with seeds that follow each other; 0: not asked for
    bool is_delta;
    int ranks;
    const char *arg[2]; ///< positional: a path, a text
    int n_args;
    bool has_cuda_math, has_cpu_math;
    bool is_json, is_verbose, is_quiet, wants_help, wants_man, dump_all;
    char *owned[MAX_REFS + MAX_LORAS + 8]; ///< strings cut out of arguments
    int n_owned;
} cli;

/** Fills *c from argv. On failure prints one line to stderr and returns the exit status to use; 0
 *  when parsing went well. */
int args_parse(cli *c, int argc, char **argv);
void args_free(cli *c);

/** What a line of --batch may give for an option of `generate`. */
typedef enum args_value {
    ARGS_UNKNOWN = 0,
    ARGS_ENGINE, ///< nothing: it is the same for all requests
    ARGS_COUNT,  ///< nothing: a line is one video
    ARGS_FLAG,   ///< true or false
    ARGS_TEXT,   ///< a text
    ARGS_NUMBER, ///< a number, or its text
    ARGS_NUMBERS,
    ARGS_FILES ///< a text or several
} args_value;

/** Of the option called `name`, without dashes in front; '_' stands for '-' too. */
args_value args_of_request(const char *name);

/** Before the members of a line are set: what they replace of the command line's. */
void args_forget(cli *c, const char *name);

/** Sets one of them; `value` must live as long as *c, and is NULL for a flag. Returns 0 or the exit
 *  status after report_said. */
int args_set(cli *c, const char *name, const char *value, bool is_set);

/** After the last of them. */
int args_settle(cli *c);

/** Is any part of a model named? A plan of none is for the released one, at hand or not. */
bool args_name_model(const h3_engine_opts *o);

/** The command called `name`, or CMD_NONE. */
command args_command(const char *name);

/** Usage of one command, or (CMD_NONE) the overview. */
void args_usage(FILE *to, command cmd);

/** The man page h3av(1), in roff. */
void args_man(FILE *to);

#endif
