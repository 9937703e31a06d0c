/**
 * From fields to a job: the union of what clients of OpenAI's, vLLM-Omni's and SGLang's video
 * routes send, read strictly. One table says what each field means; a field that is not in it, or
 * that asks for something this engine does not do, is refused by name.
 *
 * What comes out is small JSON that the worker turns into an h3_request (srv_params_request):
 *
 *     params {task, width, height, aspect, frames, seconds, steps, seed, shift, audio_shift, fit,
 *             noise_order, sigmas}      only what was given; the seed always
 *     inputs [{file, name, kind, role, sound, bytes}]   role "first", "last" or "reference"
 */
#ifndef H3AV_SERVER_PARAMS_H
#define H3AV_SERVER_PARAMS_H

#include <h3av/h3av.h>

#include "body.h"

enum { SRV_INPUTS_MAX = 12, SRV_SIGMAS_MAX = 256 };

/** What decides about fields besides themselves. */
typedef struct srv_limits {
    const char *model; ///< name of the model served
    double max_seconds;
    int max_pixels, max_steps;
} srv_limits;

typedef struct srv_params {
    char *prompt;
    json_t *params, *inputs;
} srv_params;

/** Reads b->fields; data: URLs become files of b. False: b->fault says why. */
bool srv_params_read(srv_params *out, srv_body *b, const srv_limits *lim);
void srv_params_free(srv_params *p);

/** Names of all fields that are accepted, as a sorted JSON list (for documents and tests). */
json_t *srv_params_names(void);

/** Fills *rq from params: borrows their strings. `sigmas` has room for SRV_SIGMAS_MAX. */
void srv_params_request(h3_request *rq, const json_t *params, float *sigmas);

#endif
