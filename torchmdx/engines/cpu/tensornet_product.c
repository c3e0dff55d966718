/* Products of rows of channels with matrices, in tiles whose sums stay in registers. Every sum runs over the inputs in
   ascending order, so results do not depend on the tiles.

   ROWS by COLUMNS slices: the largest tile that the registers of the instruction set hold. */

#undef PER_SLICE
#define PER_SLICE (SLICE / LANES)

/* Where the rows of a product are: row r at in + offset[r] of each slice of channels, stride numbers apart. */
struct NAME(rows) {
    int64_t count, stride;
    const int32_t *offset;
};

INLINE void NAME(tile)(const REAL *in, int64_t in_stride, const int32_t *offset, int64_t inner, const REAL *matrix,
                       REAL *out, int64_t out_stride, const REAL *bias, int rows, int columns)
{
    V sum[ROWS][COLUMNS * PER_SLICE];
    const REAL *row[ROWS];
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
        row[r] = in + offset[r];
#pragma GCC unroll 16
        for (int c = 0; c < columns * PER_SLICE; c++) sum[r][c] = bias ? NAME(load)(bias + c * LANES) : (V){0};
    }
    const int64_t next = inner * SLICE * SLICE; /* from one slice of outputs to the next */
    for (int64_t s = 0; s < inner; s++) {
        for (int64_t k = 0; k < SLICE; k++) {
            V weight[COLUMNS * PER_SLICE];
#pragma GCC unroll 16
            for (int c = 0; c < columns * PER_SLICE; c++)
                weight[c] = NAME(load)(matrix + c / PER_SLICE * next + c % PER_SLICE * LANES);
#pragma GCC unroll 16
            for (int r = 0; r < rows; r++) {
                V x = NAME(all)(row[r][k]);
#pragma GCC unroll 16
                for (int c = 0; c < columns * PER_SLICE; c++) sum[r][c] += x * weight[c];
            }
            matrix += SLICE;
        }
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) row[r] += in_stride;
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 16
        for (int c = 0; c < columns * PER_SLICE; c++)
            NAME(store)(out + c / PER_SLICE * out_stride + offset[r] + c % PER_SLICE * LANES, sum[r][c]);
}

#define TILE(n, columns)                                                                              \
    case n: NAME(tile)(in, in_stride, offset, inner, matrix, out, out_stride, bias, n, columns); break;

#if ROWS == 12
#define TILES(columns) TILE(1, columns) TILE(2, columns) TILE(3, columns) TILE(4, columns) TILE(5, columns) \
    TILE(6, columns) TILE(7, columns) TILE(8, columns) TILE(9, columns) TILE(10, columns) TILE(11, columns) \
    TILE(12, columns)
#elif ROWS == 6
#define TILES(columns) TILE(1, columns) TILE(2, columns) TILE(3, columns) TILE(4, columns) TILE(5, columns) \
    TILE(6, columns)
#elif ROWS == 3
#define TILES(columns) TILE(1, columns) TILE(2, columns) TILE(3, columns)
#elif ROWS == 2
#define TILES(columns) TILE(1, columns) TILE(2, columns)
#else
#define TILES(columns) TILE(1, columns)
#endif

static void NAME(wide_tile)(const REAL *in, int64_t in_stride, const int32_t *offset, int64_t inner,
                            const REAL *matrix, REAL *out, int64_t out_stride, const REAL *bias, int64_t rows)
{
    switch (rows) { TILES(COLUMNS) }
}

static void NAME(narrow_tile)(const REAL *in, int64_t in_stride, const int32_t *offset, int64_t inner,
                              const REAL *matrix, REAL *out, int64_t out_stride, const REAL *bias, int64_t rows)
{
    switch (rows) { TILES(1) }
}

#undef TILE
#undef TILES

/* out = in W + bias: rows of `inner` slices of channels, `outer` slices of outputs. */
static void NAME(product)(const REAL *in, int64_t in_stride, const int32_t *offset, int64_t rows, int64_t inner,
                          const REAL *matrix, const REAL *bias, int64_t outer, REAL *out, int64_t out_stride)
{
    const int64_t tiles = (rows + ROWS - 1) / ROWS;
    for (int64_t c = 0; c < outer;) {
        const int64_t width = outer - c >= COLUMNS ? COLUMNS : 1;
        for (int64_t k = 0; k < tiles; k++) {
            const int64_t first = rows * k / tiles, count = rows * (k + 1) / tiles - first;
            (width == COLUMNS ? NAME(wide_tile) : NAME(narrow_tile))(
                in, in_stride, offset + first, inner, matrix + c * inner * SLICE * SLICE, out + c * out_stride,
                out_stride, bias ? bias + c * SLICE : 0, count);
        }
        c += width;
    }
}

/* Where the components of each part are in a block, and the rows of a vector per atom. */
struct NAME(places) {
    int32_t part[3][5 * MOST_BLOCK], flat[MOST_BLOCK];
};

static void NAME(find_places)(struct NAME(places) *places)
{
    static const int start[4] = {0, 1, 4, 9};
    for (int k = 0; k < MOST_BLOCK; k++) {
        places->flat[k] = k * SLICE;
        for (int part = 0; part < 3; part++)
            for (int q = start[part], width = start[part + 1] - start[part]; q < start[part + 1]; q++)
                places->part[part][k * width + q - start[part]] = k * NINE + q * SLICE;
    }
}

/* One matrix per part, or its transpose, for the first n atoms of a block. */
static void NAME(mix)(const struct NAME(places) *places, int64_t slices, int64_t stride, int64_t n, const REAL *in,
                      const struct map maps[3], int back, REAL *out)
{
    static const int width[3] = {1, 3, 5};
    for (int part = 0; part < 3; part++)
        NAME(product)(in, stride, places->part[part], n * width[part], slices,
                      back ? maps[part].back : maps[part].weight, 0, slices, out, stride);
}
