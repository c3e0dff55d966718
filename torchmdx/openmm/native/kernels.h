// The kernels of the CUDA platform, in OpenMM's dialect, compiled when a Context is created.
// MIXED: positions have a remainder. OFFSETS: translations by box vectors are undone. LINKS: the last atoms of the
// potential are link atoms, and the last particles of the force their outer atoms. PERIODIC: any image of an atom will do.
#pragma once

namespace torchmdx {

const char* const KERNELS = R"(
/* Converts coordinates in nm to Å in the step's order, and undoes OpenMM's translations by box vectors. */
KERNEL void gatherPositions(GLOBAL const real4* RESTRICT posq,
#ifdef MIXED
        GLOBAL const real4* RESTRICT correction,
#endif
#ifdef OFFSETS
        GLOBAL const int4* RESTRICT offsets,
#endif
        GLOBAL const int* RESTRICT atomIndex, GLOBAL const int* RESTRICT place, GLOBAL double* RESTRICT positions,
        GLOBAL double* RESTRICT cell, int numAtoms, double length, double ax, double ay, double az, double bx, double by,
        double bz, double cx, double cy, double cz
#ifdef LINKS
        , GLOBAL double* RESTRICT outer, int numOwn
#endif
        ) {
    if (GLOBAL_ID == 0) {
        cell[0] = ax*length; cell[1] = ay*length; cell[2] = az*length;
        cell[3] = bx*length; cell[4] = by*length; cell[5] = bz*length;
        cell[6] = cx*length; cell[7] = cy*length; cell[8] = cz*length;
    }
    for (int i = GLOBAL_ID; i < numAtoms; i += GLOBAL_SIZE) {
        int at = place[atomIndex[i]];
        if (at < 0)
            continue;
        real4 p = posq[i];
        double x = p.x, y = p.y, z = p.z;
#ifdef MIXED
        real4 q = correction[i];
        x += q.x; y += q.y; z += q.z;
#endif
#ifdef OFFSETS
        int4 n = offsets[i];
        x -= n.x*ax + n.y*bx + n.z*cx;
        y -= n.x*ay + n.y*by + n.z*cy;
        z -= n.x*az + n.y*bz + n.z*cz;
#endif
#ifdef LINKS
        GLOBAL double* to = at < numOwn ? positions+3*at : outer+3*(at-numOwn);
#else
        GLOBAL double* to = positions+3*at;
#endif
        to[0] = x*length; to[1] = y*length; to[2] = z*length;
    }
}

#ifdef LINKS
/* Link atoms on the bonds from inner to outer atoms, after the region's own atoms. bonds: direction, and the ratio of
   the link atom's distance to the bond's length, which addForces reads. */
KERNEL void placeLinks(GLOBAL double* RESTRICT positions, GLOBAL const double* RESTRICT cell,
        GLOBAL const double* RESTRICT outer, GLOBAL const int* RESTRICT inner, GLOBAL const double* RESTRICT distances,
        GLOBAL double* RESTRICT bonds, int numOwn, int numLinks) {
    for (int k = GLOBAL_ID; k < numLinks; k += GLOBAL_SIZE) {
        GLOBAL const double* start = positions+3*inner[k];
        double x = outer[3*k]-start[0], y = outer[3*k+1]-start[1], z = outer[3*k+2]-start[2];
#ifdef PERIODIC
        double n = floor(z/cell[8]+0.5);
        x -= n*cell[6]; y -= n*cell[7]; z -= n*cell[8];
        n = floor(y/cell[4]+0.5);
        x -= n*cell[3]; y -= n*cell[4];
        x -= floor(x/cell[0]+0.5)*cell[0];
#endif
        double bond = sqrt(x*x+y*y+z*z);
        x /= bond; y /= bond; z /= bond;
        bonds[4*k] = x; bonds[4*k+1] = y; bonds[4*k+2] = z; bonds[4*k+3] = distances[k]/bond;
        GLOBAL double* to = positions+3*(numOwn+k);
        to[0] = start[0]+distances[k]*x; to[1] = start[1]+distances[k]*y; to[2] = start[2]+distances[k]*z;
    }
}

/* The part of a link atom's force f that acts on the outer atom: ratio * (f - (f . u) u). */
DEVICE void outerForce(GLOBAL const double* f, GLOBAL const double* bond, double* out) {
    double along = f[0]*bond[0]+f[1]*bond[1]+f[2]*bond[2];
    for (int k = 0; k < 3; k++)
        out[k] = bond[3]*(f[k]-along*bond[k]);
}
#endif

/* Adds nothing if a flag is set: the host then repeats the evaluation. Forces are added atomically, because OpenMM's
   kernels on other streams, such as PME's, may add to the same buffer at the same time. */
KERNEL void addForces(GLOBAL const double* RESTRICT forces, GLOBAL const mm_long* RESTRICT flags,
        GLOBAL mm_ulong* RESTRICT forceBuffers, GLOBAL const int* RESTRICT atomIndex, GLOBAL const int* RESTRICT place,
        int numAtoms, int paddedNumAtoms, double factor
#ifdef LINKS
        , GLOBAL const int* RESTRICT inner, GLOBAL const double* RESTRICT bonds, int numOwn, int numLinks
#endif
        ) {
    if (flags[OVERFLOW_FLAG] != 0 || flags[NOT_FINITE_FLAG] != 0 || flags[FAR_FLAG] != 0 || flags[UNCERTAIN_FLAG] != 0)
        return;
    for (int i = GLOBAL_ID; i < numAtoms; i += GLOBAL_SIZE) {
        int at = place[atomIndex[i]];
        if (at < 0)
            continue;
        double f[3];
#ifdef LINKS
        if (at >= numOwn)
            outerForce(forces+3*at, bonds+4*(at-numOwn), f);
        else {
            f[0] = forces[3*at]; f[1] = forces[3*at+1]; f[2] = forces[3*at+2];
            for (int k = 0; k < numLinks; k++)
                if (inner[k] == at) {
                    double out[3];
                    outerForce(forces+3*(numOwn+k), bonds+4*k, out);
                    for (int j = 0; j < 3; j++)
                        f[j] += forces[3*(numOwn+k)+j]-out[j];
                }
        }
#else
        f[0] = forces[3*at]; f[1] = forces[3*at+1]; f[2] = forces[3*at+2];
#endif
        ATOMIC_ADD(&forceBuffers[i], (mm_ulong) (mm_long) (f[0]*factor));
        ATOMIC_ADD(&forceBuffers[i+paddedNumAtoms], (mm_ulong) (mm_long) (f[1]*factor));
        ATOMIC_ADD(&forceBuffers[i+2*paddedNumAtoms], (mm_ulong) (mm_long) (f[2]*factor));
    }
}
)";

}  // namespace torchmdx
