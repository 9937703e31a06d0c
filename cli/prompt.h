/** Where a prompt comes from: an argument, an option, a file or standard input. */
#ifndef H3_CLI_PROMPT_H
#define H3_CLI_PROMPT_H

#include "args.h"

/** Sets c->rq.prompt. Returns 0, or the exit status after one line of error (args_fail); *owned is
 *  freed by the caller, whatever comes back. */
int prompt_take(cli *c, char **owned);

#endif
