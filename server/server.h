/**
 * h3av serve: the video API that clients of OpenAI's /v1/videos already speak, and a page to use
 * it.
 *
 *     srv_opts o = srv_opts_default();
 *     o.engine.model = "/models/MiniMax-H3/FL2VA";
 *     return srv_run(&o);                       // until SIGINT or SIGTERM
 *
 * One process serves HTTP and keeps the jobs (SQLite); each device has a worker process of its own,
 * started from the same program, so that a crash while generating fails one job and nothing else.
 * The server knows the engine through <h3av/h3av.h> alone. docs/server.md describes the API.
 */
#ifndef H3AV_SERVER_H
#define H3AV_SERVER_H

#include <h3av/h3av.h>

typedef struct srv_opts {
    h3_engine_opts engine; ///< engine.device may be a comma separated list: one worker for each
    const char *host;      ///< address to listen on
    int port;              ///< 0: any free one (printed)
    const char *data_dir;  ///< jobs, uploads and videos; NULL: a folder of the user's
    const char *db;        ///< NULL: a file in data_dir; postgresql://...: a queue of many servers,
                           ///< whose data_dir is one shared folder
    const char *api_key;   ///< clients send it as "Authorization: Bearer KEY"; NULL: none
    const char *api_key_file;
    bool allow_public;      ///< listen on a public address without a key
    const char *host_names; ///< further names a client may use in its Host header, comma separated
    const char *cors;       ///< origins whose pages may use the API, comma separated; NULL: none
    const char *model_name; ///< what "model" says; NULL: from the model's folder
    int max_queue;          ///< waiting jobs; more are refused with 429
    int max_connections, max_streams;
    uint64_t max_body;  ///< bytes of one request
    double max_seconds; ///< longest video
    int max_pixels;     ///< largest canvas
    int max_steps;
    int keep_jobs;                                  ///< finished jobs that are kept, 0: all
    double keep_days;                               ///< 0: for ever
    uint64_t keep_bytes;                            ///< of finished jobs, 0: no limit
    int checkpoint_every;                           ///< steps between saved states of a running job
    int header_seconds, idle_seconds, sync_seconds; ///< time limits
    bool is_quiet, is_verbose;
} srv_opts;

srv_opts srv_opts_default(void);

/** Serves until a signal says stop. Prints what it does to stderr; returns an exit status of h3av
 *  (0, 2 wrong usage, 3 input/output, or what opening the engine gave). */
int srv_run(const srv_opts *opts);

/** The other side: body of a worker process whose commands come on file descriptor `fd`. */
int srv_worker_main(int fd);

#endif
