#pragma once
#include "builtin_types.h"
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline double4 make_double4(double x, double y, double z, double w) { return {x, y, z, w}; }
