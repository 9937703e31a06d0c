/** What is wrong with a request, as OpenAI's error object says it. */
#ifndef H3AV_SERVER_FAULT_H
#define H3AV_SERVER_FAULT_H

#include "util.h"

typedef struct srv_fault {
    int http;         ///< status code; 0: nothing wrong
    const char *code; ///< a word for programs, constant text
    char param[72];   ///< field at fault, or ""
    char text[640];   ///< sentence for people
    int retry_after;  ///< seconds, 0: do not say
    bool is_final;    ///< tell clients not to retry (x-should-retry: false)
} srv_fault;

/** Records the first fault; always returns false, so that a check can end in it. */
bool srv_fault_set(srv_fault *f, int http, const char *code, const char *param, const char *fmt,
                   ...) SRV_PRINTF(5, 6);

#endif
