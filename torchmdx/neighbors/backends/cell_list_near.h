/* Compiled once for each instruction set. */

/* Which of `count` atoms, at most RUN, are within the radius of `here`: their numbers, ascending, to found. Returns how
   many. Vectors are exactly opposite seen from the other atom, so that the list has both directions of a pair or none. */
static int64_t NAME(near)(const double *x, const double *y, const double *z, int64_t count, const double *here,
                          const double *offset, double radius2, int32_t *found)
{
    int64_t kept = 0;
#if SET == 2 /* vectors of eight numbers */
    const __m512d hx = _mm512_set1_pd(here[0]), hy = _mm512_set1_pd(here[1]), hz = _mm512_set1_pd(here[2]);
    const __m512d ox = _mm512_set1_pd(offset[0]), oy = _mm512_set1_pd(offset[1]), oz = _mm512_set1_pd(offset[2]);
    __m256i number = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    for (int64_t n = 0; n < count; n += 8) {
        const __mmask8 there = count - n < 8 ? (1 << (count - n)) - 1 : 255;
        const __m512d dx = _mm512_add_pd(_mm512_sub_pd(_mm512_maskz_loadu_pd(there, x + n), hx), ox);
        const __m512d dy = _mm512_add_pd(_mm512_sub_pd(_mm512_maskz_loadu_pd(there, y + n), hy), oy);
        const __m512d dz = _mm512_add_pd(_mm512_sub_pd(_mm512_maskz_loadu_pd(there, z + n), hz), oz);
        const __m512d distance2 = _mm512_fmadd_pd(dz, dz, _mm512_fmadd_pd(dy, dy, _mm512_mul_pd(dx, dx)));
        const __mmask8 hit = _mm512_mask_cmp_pd_mask(there, distance2, _mm512_set1_pd(radius2), _CMP_LT_OQ);
        _mm256_storeu_si256((__m256i *)(found + kept), _mm256_maskz_compress_epi32(hit, number));
        kept += __builtin_popcount(hit);
        number = _mm256_add_epi32(number, _mm256_set1_epi32(8));
    }
#else
    double distance2[RUN];
    for (int64_t n = 0; n < count; n++) {
        const double dx = x[n] - here[0] + offset[0], dy = y[n] - here[1] + offset[1], dz = z[n] - here[2] + offset[2];
        distance2[n] = dx * dx + dy * dy + dz * dz;
    }
    for (int64_t n = 0; n < count; n++) { /* without a branch, which no processor would predict */
        found[kept] = (int32_t)n;
        kept += distance2[n] < radius2;
    }
#endif
    return kept;
}
