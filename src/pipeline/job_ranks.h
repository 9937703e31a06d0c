/** A request over ranks: what is done where, and what is handed on; see job_ranks.c for the table.
 *  With one rank the calls do nothing. Those named share_ are collective. */
#ifndef H3_PIPELINE_JOB_RANKS_H
#define H3_PIPELINE_JOB_RANKS_H

#include "job.h"

/** Rank 0: it reports, reads what only one needs, and writes. */
bool h3_job_is_first(const h3_job *j);
/** Does this rank encode condition i? */
bool h3_job_is_mine(const h3_job *j, int i);

/** The request of the other ranks: no events, no saved latents, no checkpoints. */
h3_request h3_job_silent(const h3_request *rq);
/** Rank 0's prompt (it may have come from its standard input) to all; *owned is malloc'd or left
 *  alone. */
H3_NODISCARD h3_status h3_job_share_prompt(h3_comm *c, h3_request *rq, char **owned);
/** H3_E_ARG when the ranks do not see the same request (other files, other arguments). */
H3_NODISCARD h3_status h3_job_same_request(const h3_job *j);
/** j->embeds of rank 0 to all. */
H3_NODISCARD h3_status h3_job_share_text(h3_job *j);
/** Latents of conditions from the ranks that encoded them to rank 0. */
H3_NODISCARD h3_status h3_job_share_conditions(h3_job *j);
/** j->first_step, video_rows and audio_rows of rank 0 to all. */
H3_NODISCARD h3_status h3_job_share_rows(h3_job *j);
/** Sizes and video of j->latents of rank 0 to all. */
H3_NODISCARD h3_status h3_job_share_latents(h3_job *j);

#endif
