/**
 * The timesteps of a whole run as one table: which distinct values occur, and which of them each
 * row of each step uses. The DiT computes its modulation for exactly this table.
 */
#ifndef H3_SAMPLER_SCHEDULE_ROWS_H
#define H3_SAMPLER_SCHEDULE_ROWS_H

#include "layout.h"
#include "sigmas.h"

typedef struct h3_schedule_rows {
    int n_steps;      ///< of this run
    int n_timesteps;  ///< U
    float *timesteps; ///< [U] ascending, distinct
    int32_t *mod_row; ///< [n_steps, S]: 3 * (index into timesteps) + tag
} h3_schedule_rows;

/** Steps first .. of two equally long schedules. H3_E_ARG, H3_E_NOMEM. Free with
 *  h3_schedule_rows_free. `has_rows` false: mod_row stays NULL (only counts are wanted). */
H3_NODISCARD h3_status h3_schedule_rows_init(h3_schedule_rows *r, const h3_layout *l,
                                             const h3_schedule *video, const h3_schedule *audio,
                                             int first, bool has_rows);
void h3_schedule_rows_free(h3_schedule_rows *r);

#endif
