/** What the files of the pipeline know of ranks; the calls of the API are in <h3av/h3av.h>. */
#ifndef H3_PIPELINE_RANKS_H
#define H3_PIPELINE_RANKS_H

#include <h3av/h3av.h>

#include "comm.h"

struct h3_ranks {
    h3_comm *comm; ///< NULL: one rank
};

/** Threads for this rank when the caller names none: its share of the host's cores; 0: all. */
int h3_ranks_threads(const h3_comm *c);

#endif
