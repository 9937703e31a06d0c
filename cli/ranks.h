/** Several processes for one command: --ranks, --gpus, mpirun. */
#ifndef H3_CLI_RANKS_H
#define H3_CLI_RANKS_H

#include "args.h"

/** First of all: silences a process that a launcher started as another rank than 0, before it can
 *  say anything. */
void ranks_hush(void);

/** True when this process has nothing to do: a launcher started several, and the command is one
 *  that a single process does. */
bool ranks_is_idle(const cli *c);

/** Joins or starts the ranks and picks this one's GPU; every call returns in each of them. On
 *  failure prints one line and returns the exit status. */
int ranks_open(cli *c);

/** After the engine is closed; returns the exit status of the program. */
int ranks_close(cli *c, int status);

#endif
