/* The computations of the engines on a tile of scores, in one pass over each row while it is in the cache.

   For the engine `tiles`, tile_sums.py explains the sums and computes them with torch; tiles.py does so for the results.
   For `rows`, row_tiles.py does both. Tests compare all of them with the same definition. This is plain C11 without
   intrinsics: if the compiler can, it compiles the functions for several processors, and the suitable version is chosen
   when the library is loaded. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12
#define EACH_PROCESSOR __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define EACH_PROCESSOR
#endif

#if defined(__GNUC__)
#define INLINED static inline __attribute__((always_inline)) /* into the version for each processor */
#else
#define INLINED static inline
#endif

/* Lane n holds the largest score of every LANES-th key from n on: the top keys lie in few of these lanes. */
#define LANES 64

/* The fields of `TileArguments` in tile_sums.py, in the same order. */
typedef struct {
    int64_t num_queries, num_keys, value_dim, top_k;
    int64_t first_rank;         /* of the tile's first key */
    int64_t bounded;            /* 1 if the reference stays 0: no score is more than SAFE_BITS away from it */
    int64_t num_first, window;  /* local keys: position < num_first or |query - key| < window */
    float headroom;             /* by how many bits scores may exceed the reference */
    float *scores;              /* query, key: scores come in, exponentials go out */
    const int64_t *first;       /* query: the ranks first <= rank < stop are visible */
    const int64_t *stop;
    const float *position;      /* key */
    const float *here;          /* query: its position */
    float *reference, *smallest, *largest;
    double *score, *score_square, *total, *total_square, *weighted, *distance, *local;
    float *first_key, *previous; /* query: the scores with the key at position 0 and with the key before the query */
    float *top_scores;           /* query, top_k: largest first */
    int64_t *top_ranks;
    float *output;               /* query, value_dim */
} Tile;

/* 2^x by a polynomial on [-1/2, 1/2] (relative error 2e-9 before rounding), for -125 <= x < 127. */
INLINED float exp2_within(float x)
{
    const float shift = 12582912.0f; /* 1.5 * 2^23: its last bits count ones */
    float shifted = x + shift;
    float f = x - (shifted - shift);
    float p = 1.533757685e-04f;
    p = p * f + 1.339986037e-03f;
    p = p * f + 9.618519534e-03f;
    p = p * f + 5.550328998e-02f;
    p = p * f + 2.402264661e-01f;
    p = p * f + 6.931472056e-01f;
    p = p * f + 1.0f;
    int32_t power, bits;
    memcpy(&power, &shifted, sizeof power);
    memcpy(&bits, &p, sizeof bits);
    bits += (int32_t)((uint32_t)power << 23);
    memcpy(&p, &bits, sizeof p);
    return p;
}

/* 2^x for any x below 127; 0 below the normal numbers. */
INLINED float exp2_of(float x)
{
    float p = exp2_within(x < -125.0f ? -125.0f : x);
    return x < -125.0f ? 0.0f : x == x ? p : x; /* the bits of some NaN would make it a number */
}

/* Insert a score that is among the top_k; return the smallest of the top_k. */
INLINED float keep(float score, int64_t rank, float *top_scores, int64_t *top_ranks, int64_t top_k)
{
    int64_t place = top_k - 1;
    for (; place > 0 && score > top_scores[place - 1]; place--) {
        top_scores[place] = top_scores[place - 1];
        top_ranks[place] = top_ranks[place - 1];
    }
    top_scores[place] = score;
    top_ranks[place] = rank;
    return top_scores[top_k - 1];
}

/* Merge a row of scores into its top_k; `lanes` holds the largest of every LANES-th score. */
INLINED void find_top(const Tile *tile, const float *lanes, int64_t query, int64_t from, int64_t to)
{
    const float *scores = tile->scores + query * tile->num_keys;
    int64_t top_k = tile->top_k;
    float *top_scores = tile->top_scores + query * top_k;
    int64_t *top_ranks = tile->top_ranks + query * top_k;
    float left[LANES], least = top_scores[top_k - 1], bound = -INFINITY;
    memcpy(left, lanes, sizeof left);
    /* No score below the top_k-th largest of the lanes' maxima is among the top_k. */
    for (int64_t rank = 0; rank < top_k; rank++) {
        float largest = -INFINITY;
#pragma omp simd reduction(max : largest)
        for (int64_t lane = 0; lane < LANES; lane++)
            largest = left[lane] > largest ? left[lane] : largest;
        if (!(largest > least)) {
            bound = least;
            break;
        }
        bound = largest;
#pragma omp simd
        for (int64_t lane = 0; lane < LANES; lane++)
            left[lane] = left[lane] == largest ? -INFINITY : left[lane];
    }
    int64_t chosen[LANES], num_chosen = 0;
    for (int64_t lane = 0; lane < LANES; lane++) {
        chosen[num_chosen] = lane;
        num_chosen += lanes[lane] >= bound;
    }
    for (int64_t place = 0; place < num_chosen; place++)
        for (int64_t j = from + chosen[place]; j < to; j += LANES)
            if (scores[j] >= bound && scores[j] > least)
                least = keep(scores[j], tile->first_rank + j, top_scores, top_ranks, top_k);
}

/* The sum of the weights in the columns from <= j < to. */
INLINED float sum_of(const float *weights, int64_t from, int64_t to)
{
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = from; j < to; j++)
        sum += weights[j];
    return sum;
}

/* The first column in from <= j < to whose position is at least a bound; positions increase. */
INLINED int64_t column_from(const float *position, int64_t from, int64_t to, float bound)
{
    while (from < to) {
        int64_t middle = from + (to - from) / 2;
        if (position[middle] < bound)
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

/* Record the scores with the first key and the previous key, if the row sees them. */
INLINED void note_keys(const Tile *tile, int64_t query, int64_t from, int64_t to)
{
    const float *scores = tile->scores + query * tile->num_keys, *position = tile->position;
    float before = tile->here[query] - 1.0f;
    if (from == 0 && tile->first_rank == 0 && position[0] == 0.0f)
        tile->first_key[query] = scores[0];
    if (before < position[from] || before > position[to - 1])
        return;
    int64_t column = column_from(position, from, to, before);
    if (position[column] == before)
        tile->previous[query] = scores[column];
}

/* Take one score into each lane; there are at most LANES scores. */
INLINED void add_to_lanes(const float *scores, int64_t num_lanes, float *highest, float *lowest, float *sums,
                          float *squares)
{
#pragma omp simd
    for (int64_t lane = 0; lane < num_lanes; lane++) {
        float score = scores[lane];
        highest[lane] = score > highest[lane] ? score : highest[lane];
        lowest[lane] = score < lowest[lane] ? score : lowest[lane];
        sums[lane] += score;
        squares[lane] += score * score;
    }
}

/* Add the moments, extremes and top keys of the visible scores of a row. */
INLINED void add_scores(const Tile *tile, int64_t query, int64_t from, int64_t to)
{
    const float *scores = tile->scores + query * tile->num_keys;
    float highest[LANES], lowest[LANES], sums[LANES], squares[LANES];
    for (int64_t lane = 0; lane < LANES; lane++) {
        highest[lane] = -INFINITY;
        lowest[lane] = INFINITY;
        sums[lane] = squares[lane] = 0.0f;
    }
    int64_t start = from;
    for (; start + LANES <= to; start += LANES)
        add_to_lanes(scores + start, LANES, highest, lowest, sums, squares);
    add_to_lanes(scores + start, to - start, highest, lowest, sums, squares);
    float most = -INFINITY, least = INFINITY, sum = 0.0f, square = 0.0f;
#pragma omp simd reduction(+ : sum, square) reduction(max : most) reduction(min : least)
    for (int64_t lane = 0; lane < LANES; lane++) {
        most = highest[lane] > most ? highest[lane] : most;
        least = lowest[lane] < least ? lowest[lane] : least;
        sum += sums[lane];
        square += squares[lane];
    }
    if (tile->top_k && most > tile->top_scores[query * tile->top_k + tile->top_k - 1])
        find_top(tile, highest, query, from, to);
    tile->score[query] += sum;
    tile->score_square[query] += square;
    if (least < tile->smallest[query])
        tile->smallest[query] = least;
    if (most > tile->largest[query])
        tile->largest[query] = most;
}

/* If the scores exceed the reference, raise it to the largest score, and scale the sums down. */
INLINED void raise_reference(const Tile *tile, int64_t query)
{
    float reference = tile->reference[query], largest = tile->largest[query];
    if (!(largest > reference + tile->headroom))
        return;
    double step = (double)reference - (double)largest, factor = exp2(step);
    tile->weighted[query] = (tile->weighted[query] + step * tile->total[query]) * factor;
    tile->total[query] *= factor;
    tile->total_square[query] *= factor * factor;
    tile->distance[query] *= factor;
    tile->local[query] *= factor;
    float *output = tile->output + query * tile->value_dim;
    for (int64_t d = 0; d < tile->value_dim; d++)
        output[d] *= (float)factor;
    tile->reference[query] = largest;
}

/* The sum of the exponentials of the first keys and of the keys near the query. */
INLINED float local_sum(const Tile *tile, const float *weights, float here, int64_t from, int64_t to)
{
    const float *position = tile->position;
    float window = (float)tile->window, num_first = (float)tile->num_first;
    float sum = 0.0f;
    int64_t beside = from;
    if (position[from] < num_first) {
        beside = column_from(position, from, to, num_first);
        sum = sum_of(weights, from, beside);
    }
    if (position[to - 1] <= here - window || position[from] >= here + window)
        return sum;
    int64_t near = column_from(position, beside, to, here - window + 1.0f);
    return sum + sum_of(weights, near, column_from(position, near, to, here + window));
}

/* Turn the visible scores of a row into exponentials, and add up their sums. Bounded scores are all near 0. */
INLINED void add_weights(const Tile *tile, int64_t query, int64_t from, int64_t to, int bounded)
{
    float *scores = tile->scores + query * tile->num_keys;
    const float *position = tile->position;
    float reference = tile->reference[query], here = tile->here[query];
    float total = 0.0f, square = 0.0f, weighted = 0.0f, distance = 0.0f;
#pragma omp simd reduction(+ : total, square, weighted, distance)
    for (int64_t j = from; j < to; j++) {
        float score = bounded ? scores[j] : scores[j] - reference;
        float weight = bounded ? exp2_within(score) : exp2_of(score);
        scores[j] = weight;
        total += weight;
        square += weight * weight;
        weighted += weight * score;
        distance += weight * fabsf(here - position[j]);
    }
    tile->total[query] += total;
    tile->total_square[query] += square;
    tile->weighted[query] += weighted;
    tile->distance[query] += distance;
    tile->local[query] += local_sum(tile, scores, here, from, to);
}

/* The columns of the tile that a row sees. */
INLINED int64_t within(int64_t rank, int64_t first_rank, int64_t num_keys)
{
    int64_t column = rank - first_rank;
    return column < 0 ? 0 : column > num_keys ? num_keys : column;
}

/* Add a tile to the running sums of its rows; hidden scores become 0, which is their weight. */
EACH_PROCESSOR void attn_add_tile(const Tile *tile)
{
    int64_t num_keys = tile->num_keys;
    for (int64_t query = 0; query < tile->num_queries; query++) {
        float *scores = tile->scores + query * num_keys;
        int64_t from = within(tile->first[query], tile->first_rank, num_keys);
        int64_t to = within(tile->stop[query], tile->first_rank, num_keys);
        if (from >= to) {
            memset(scores, 0, (size_t)num_keys * sizeof *scores);
            continue;
        }
        note_keys(tile, query, from, to);
        add_scores(tile, query, from, to);
        if (tile->bounded) {
            add_weights(tile, query, from, to, 1);
        } else {
            raise_reference(tile, query);
            add_weights(tile, query, from, to, 0);
        }
        memset(scores, 0, (size_t)from * sizeof *scores);
        memset(scores + to, 0, (size_t)(num_keys - to) * sizeof *scores);
    }
}

/* Add the weights 2^(score - reference) * inverse of some rows to the sum and maximum of each column. */
EACH_PROCESSOR void attn_add_columns(const float *scores, int64_t num_queries, int64_t num_keys, const int64_t *first,
                                     const int64_t *stop, int64_t first_rank, const float *reference,
                                     const float *inverse, float *mass, float *largest)
{
    for (int64_t query = 0; query < num_queries; query++) {
        const float *row = scores + query * num_keys;
        int64_t from = within(first[query], first_rank, num_keys), to = within(stop[query], first_rank, num_keys);
        float own_reference = reference[query], own_inverse = inverse[query];
#pragma omp simd
        for (int64_t j = from; j < to; j++) {
            float weight = exp2_of(row[j] - own_reference) * own_inverse;
            mass[j] += weight;
            largest[j] = weight > largest[j] ? weight : largest[j];
        }
    }
}

/* Mark the rows with two kept scores (including the last) that differ only by rounding; return their number. */
EACH_PROCESSOR int64_t attn_tied_rows(const float *top_scores, int64_t num_rows, int64_t num_top, float lowest,
                                      float unit, float roundings, uint8_t *tied)
{
    int64_t count = 0;
    for (int64_t row = 0; row < num_rows; row++) {
        const float *scores = top_scores + row * num_top;
        tied[row] = 0;
        for (int64_t rank = 1; rank < num_top && scores[rank] > lowest; rank++) {
            float best = scores[rank - 1], size = fabsf(best) > unit ? fabsf(best) : unit;
            tied[row] |= scores[rank] >= best - roundings * size;
        }
        count += tied[row];
    }
    return count;
}

/* The fields of `FinishArguments` in tiles.py, in the same order. */
typedef struct {
    int64_t num_rows, value_dim, num_top; /* the last of num_top scores is one more than wanted */
    int64_t num_keys;                     /* including keys hidden by padding */
    double sink;                          /* in bits; -inf without a sink */
    float lowest;                         /* the score of a missing or hidden entry */
    const int64_t *kept;                  /* rank: its key */
    const int64_t *first_seen, *stop;     /* row: the ranks first_seen <= rank < stop are visible */
    const float *here, *centre;
    const float *reference, *smallest, *largest;
    const double *score, *score_square, *total, *total_square, *weighted, *distance_sum, *local_sum;
    const float *first_key, *previous_key, *top_scores;
    const int64_t *top_ranks;
    float *logsumexp, *sums, *entropy, *normalized_entropy, *max_weight, *sink_mass, *distance, *local_mass;
    float *max_score, *previous_token, *inverse;
    double *participation;
    int64_t *visible, *top_keys;
    float *top_weights, *output; /* row, num_top - 1; row, value_dim: sums become the output */
    double *moments;             /* count, mean, sum of squared deviations, minimum and maximum of the visible scores */
} Finish;

#define LN_2 0.6931471805599453094

/* Compute the statistics of a row from its sums; a row that sees no key keeps its nulls. */
INLINED void finish_row(const Finish *rows, int64_t row)
{
    int64_t visible = rows->stop[row] - rows->first_seen[row], num_wanted = rows->num_top ? rows->num_top - 1 : 0;
    float *output = rows->output + row * rows->value_dim;
    rows->visible[row] = visible;
    if (!visible)
        return;
    double total = rows->total[row], log_total = log2(total), keys_alone = rows->reference[row] + log_total;
    double sink = rows->sink - rows->centre[row], above = fmax(keys_alone, sink), below = fmin(keys_alone, sink);
    double logsumexp = above + log1p(exp2(below - above)) / LN_2, log_share = keys_alone - logsumexp;
    double share = exp2(log_share);
    double entropy = share * (log_total - rows->weighted[row] / total - log_share) * LN_2;
    entropy = entropy < 0 ? 0 : entropy;
    rows->logsumexp[row] = (float)((logsumexp + rows->centre[row]) * LN_2);
    rows->sums[row] = (float)share;
    rows->entropy[row] = (float)entropy;
    if (visible > 1)
        rows->normalized_entropy[row] = (float)(entropy / log((double)visible));
    rows->max_weight[row] = (float)exp2(rows->largest[row] - logsumexp);
    rows->sink_mass[row] = (float)exp2(rows->first_key[row] - logsumexp);
    rows->distance[row] = (float)(share * rows->distance_sum[row] / total);
    rows->local_mass[row] = (float)(share * rows->local_sum[row] / total);
    rows->participation[row] = total * total / rows->total_square[row] / (share * share);
    rows->max_score[row] = (float)(((double)rows->largest[row] + rows->centre[row]) * LN_2);
    float before = rows->here[row] - 1.0f;
    if (before >= 0.0f && before < (float)rows->num_keys)
        rows->previous_token[row] = (float)exp2(rows->previous_key[row] - logsumexp);
    for (int64_t rank = 0; rank < num_wanted; rank++) {
        float score = rows->top_scores[row * rows->num_top + rank];
        if (score == rows->lowest) /* more keys are wanted than visible */
            break;
        rows->top_weights[row * num_wanted + rank] = (float)exp2(score - logsumexp);
        rows->top_keys[row * num_wanted + rank] = rows->kept[rows->top_ranks[row * rows->num_top + rank]];
    }
    rows->inverse[row] = (float)exp2(rows->reference[row] - logsumexp);
    float factor = (float)(share / total);
    for (int64_t column = 0; column < rows->value_dim; column++)
        output[column] *= factor;
}

/* The moments of the visible scores of all rows, from the moments of each row about its own centre. */
INLINED void finish_moments(const Finish *rows)
{
    double count = 0, sum = 0, squares = 0, smallest = INFINITY, largest = -INFINITY;
    for (int64_t row = 0; row < rows->num_rows; row++) {
        double visible = (double)(rows->stop[row] - rows->first_seen[row]);
        count += visible;
        sum += rows->score[row] + visible * rows->centre[row];
    }
    double mean = sum / count;
    for (int64_t row = 0; row < rows->num_rows; row++) {
        double visible = (double)(rows->stop[row] - rows->first_seen[row]), centre = rows->centre[row];
        double offset = centre - mean;
        squares += rows->score_square[row] + 2 * offset * rows->score[row] + visible * offset * offset;
        if (visible > 0) {
            smallest = fmin(smallest, rows->smallest[row] + centre);
            largest = fmax(largest, rows->largest[row] + centre);
        }
    }
    double moments[] = {count, mean * LN_2, squares * LN_2 * LN_2, smallest * LN_2, largest * LN_2};
    memcpy(rows->moments, moments, sizeof moments);
}

/* Compute every statistic of the rows from their sums. */
EACH_PROCESSOR void attn_finish_rows(const Finish *rows)
{
    for (int64_t row = 0; row < rows->num_rows; row++)
        finish_row(rows, row);
    finish_moments(rows);
}

/* The fields of `RowArguments` in row_tiles.py, in the same order: whole rows of several heads, head by head. */
typedef struct {
    int64_t num_queries, num_keys; /* rows per head, and columns */
    int64_t num_first, window;     /* local keys: position < num_first or |query - key| < window */
    const float *scores;           /* row, key; -inf where hidden */
    float *weights;                /* row, key */
    const float *sink;             /* row: a score that is added to the denominator; NULL without a sink */
    const uint8_t *blind;          /* row: 1 if it sees no key; NULL if every row sees a key */
    const float *position;         /* key */
    const float *here;             /* query: its position */
    float *logsumexp, *log_total, *sum, *cross, *distance; /* row */
    float *local;                  /* row: the weight on the first keys and on the keys near the query */
    float *rest_sum, *rest_log_total, *rest_cross; /* row: for the weights outside the first column */
    double *participation;         /* row: 1 / sum weight^2, which exceeds float with a strong sink */
} Rows;

#define LOG2_E 1.44269504088896340736f
/* exp(LEAST) is 0, and 0 * LEAST is 0: a hidden score (-inf) adds nothing to an entropy. */
#define LEAST_EXPONENT -800.0f
/* The reference of a row whose scores are all -inf: -inf minus this is -inf, but -inf minus -inf is NaN. */
#define LEAST_REFERENCE -1.7e38f
/* The number of keys that are summed in float before the sums are added in double. */
#define RUN 2048

/* The weight on the first keys and on the keys near the query; columns are adjacent keys. */
INLINED float local_mass(const Rows *rows, const float *weights, float here)
{
    int64_t start = (int64_t)rows->position[0], num_keys = rows->num_keys;
    int64_t first = within(rows->num_first, start, num_keys);
    int64_t from = within((int64_t)here - rows->window + 1, start, num_keys);
    int64_t to = within((int64_t)here + rows->window, start, num_keys);
    return sum_of(weights, 0, first) + sum_of(weights, from > first ? from : first, to);
}

/* Sums over the columns from 1 on, whose largest score is `highest`: of the weights, and of weight * (score - highest). */
INLINED void sum_rest(const float *scores, const float *weights, int64_t num_keys, float highest, double *rest,
                      double *cross)
{
    *rest = *cross = 0;
    for (int64_t start = 1; start < num_keys; start += RUN) {
        int64_t stop = start + RUN < num_keys ? start + RUN : num_keys;
        float of_run = 0.0f, cross_of_run = 0.0f;
#pragma omp simd reduction(+ : of_run, cross_of_run)
        for (int64_t j = start; j < stop; j++) {
            float below = scores[j] - highest;
            below = below < LEAST_EXPONENT ? LEAST_EXPONENT : below;
            of_run += weights[j];
            cross_of_run += weights[j] * below;
        }
        *rest += of_run;
        *cross += cross_of_run;
    }
}

/* Compute weight = exp(score - logsumexp) and sums over the weights of a row; weights are 0 if it sees no key. */
INLINED void softmax_row(const Rows *rows, int64_t row)
{
    int64_t num_keys = rows->num_keys;
    const float *scores = rows->scores + row * num_keys, *position = rows->position;
    float *weights = rows->weights + row * num_keys;
    float here = rows->here[row % rows->num_queries], highest_of_rest = num_keys > 1 ? scores[1] : -INFINITY;
#pragma omp simd reduction(max : highest_of_rest)
    for (int64_t j = 1; j < num_keys; j++)
        highest_of_rest = scores[j] > highest_of_rest ? scores[j] : highest_of_rest;
    int is_blind = rows->blind && rows->blind[row];
    float reference = scores[0] < highest_of_rest ? highest_of_rest : scores[0];
    if (rows->sink && reference < LEAST_REFERENCE) /* all scores are -inf: all weight goes to the sink */
        reference = LEAST_REFERENCE;
    if (is_blind)
        reference = 0.0f;
    double total = 0, cross = 0, squares = 0, distance = 0;
    for (int64_t start = 0; start < num_keys; start += RUN) {
        int64_t stop = start + RUN < num_keys ? start + RUN : num_keys;
        float of_run = 0.0f, cross_of_run = 0.0f, squares_of_run = 0.0f, distance_of_run = 0.0f;
#pragma omp simd reduction(+ : of_run, cross_of_run, squares_of_run, distance_of_run)
        for (int64_t j = start; j < stop; j++) {
            float exponent = scores[j] - reference;
            exponent = exponent < LEAST_EXPONENT ? LEAST_EXPONENT : exponent;
            float weight = exp2_of(exponent * LOG2_E);
            weights[j] = weight;
            of_run += weight;
            cross_of_run += weight * exponent;
            squares_of_run += weight * weight;
            distance_of_run += weight * fabsf(here - position[j]);
        }
        total += of_run;
        cross += cross_of_run;
        squares += squares_of_run;
        distance += distance_of_run;
    }
    /* Outside the first column: if it has most of the weight, differences of whole sums lose the digits of the rest. */
    float highest = highest_of_rest < LEAST_REFERENCE ? reference : highest_of_rest;
    double apart = (double)highest - reference, rest = total - weights[0], rest_cross;
    if (weights[0] > 0.5 * total) {
        sum_rest(scores, weights, num_keys, highest, &rest, &rest_cross);
    } else {
        float first = scores[0] - reference;
        rest_cross = cross - (double)weights[0] * (first < LEAST_EXPONENT ? LEAST_EXPONENT : first) - apart * rest;
    }
    double inverse = 1, log_total = 0, logsumexp = 0;
    if (!is_blind) {
        double above = rows->sink ? (double)rows->sink[row] - reference : -INFINITY, smaller = exp(-fabs(above));
        if (above > 0) {
            inverse = smaller / (1 + total * smaller);
            log_total = above + log1p(total * smaller);
            logsumexp = rows->sink[row] + log1p(total * smaller);
        } else {
            inverse = 1 / (total + smaller);
            log_total = log(total + smaller);
            logsumexp = reference + log_total;
        }
    }
    float of_weights = (float)inverse;
#pragma omp simd
    for (int64_t j = 0; j < num_keys; j++)
        weights[j] *= of_weights;
    rows->logsumexp[row] = (float)logsumexp;
    rows->log_total[row] = (float)log_total;
    rows->sum[row] = is_blind ? 0.0f : rows->sink ? (float)(total * inverse) : 1.0f;
    rows->cross[row] = (float)(cross * inverse);
    rows->distance[row] = (float)(distance * inverse);
    rows->local[row] = local_mass(rows, weights, here);
    rows->rest_sum[row] = (float)(rest * inverse);
    rows->rest_log_total[row] = rest > 0 ? (float)(log(rest) - apart) : 0.0f;
    rows->rest_cross[row] = rest > 0 ? (float)(rest_cross / rest) : 0.0f;
    rows->participation[row] = 1 / inverse / inverse / squares;
}

/* Compute the softmax of the rows start <= row < stop, and the sums that their statistics need. */
EACH_PROCESSOR void attn_softmax_rows(const Rows *rows, int64_t num_rows)
{
    for (int64_t row = 0; row < num_rows; row++)
        softmax_row(rows, row);
}
