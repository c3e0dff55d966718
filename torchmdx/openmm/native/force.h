// TorchmdxForce: an OpenMM::Force that represents a captured step. Uses neither libtorch nor CUDA headers.
#pragma once

#include "callbacks.h"
#include "openmm/Force.h"
#include "openmm/Kernel.h"
#include "openmm/KernelFactory.h"
#include "openmm/KernelImpl.h"
#include "openmm/OpenMMException.h"
#include "openmm/Platform.h"
#include "openmm/internal/ContextImpl.h"
#include "openmm/internal/ForceImpl.h"
#include <atomic>
#include <map>
#include <string>
#include <vector>

namespace torchmdx {

extern Callbacks callbacks;
extern Units units;
// False while the Python interpreter shuts down: callbacks must not be called.
extern std::atomic<bool> alive;

constexpr int MESSAGE = 4096;

void requireAlive();

// Calls Python with `call(message)`. Throws OpenMMException with Python's message, or if Python was interrupted.
template <class Call> auto answerOf(Call call) {
    char message[MESSAGE] = "Python was interrupted before it answered";
    auto answer = call(message);
    if (message[0] != 0)
        throw OpenMM::OpenMMException(message);
    return answer;
}

// Handles of a session's graphs. Python may destroy graphs during a request for handles, so none are held meanwhile.
class HeldHandles {
public:
    explicit operator bool() const { return held.graph != 0; }
    const Handles* operator->() const { return &held; }

    // ask(handles, message): calls Python, which fills the handles. Nothing is held if that throws.
    template <class Ask> void renew(Ask ask) {
        held = Handles{};
        Handles fresh{};
        answerOf([&](char* message) { return ask(&fresh, message); });
        held = fresh;
    }

private:
    Handles held{};
};

class TorchmdxForce : public OpenMM::Force {
public:
    long long provider = 0;
    bool periodic = false;
    std::vector<int> particles;    // of the System; empty: all
    std::string scaleParameter;    // empty: none
    bool derivative = false;       // dE/dscaleParameter was requested from this force
    double energyOffset = 0.0;     // kJ/mol, subtracted from the energy before it is scaled
    std::string reference;         // from which `restore` creates a provider
    ~TorchmdxForce() override {
        if (provider && alive)
            callbacks.drop(provider);
    }
    bool usesPeriodicBoundaryConditions() const override { return periodic; }

protected:
    OpenMM::ForceImpl* createImpl() const override;
};

class CalcTorchmdxKernel : public OpenMM::KernelImpl {
public:
    static std::string Name() { return "CalcTorchmdxForce"; }
    CalcTorchmdxKernel(std::string name, const OpenMM::Platform& platform) : KernelImpl(name, platform) {}
    virtual void initialize(OpenMM::ContextImpl& context, const TorchmdxForce& force) = 0;
    virtual double execute(OpenMM::ContextImpl& context, bool includeForces, bool includeEnergy) = 0;

protected:
    // What does not depend on the platform, for `initialize`.
    void adopt(OpenMM::ContextImpl& context, const TorchmdxForce& force);
    double scaleOf(OpenMM::ContextImpl& context) const;
    // The energy in kJ/mol, shifted and scaled, from that of the potential in eV. Adds its derivative, the energy without
    // the scale, to those of the Context.
    double finished(double energy, double scale, std::map<std::string, double>& derivatives) const;

    std::vector<int> particles;
    bool periodic = false;

private:
    std::string scaleParameter;
    bool derivative = false;
    double energyOffset = 0.0;
};

class TorchmdxForceImpl : public OpenMM::ForceImpl {
public:
    explicit TorchmdxForceImpl(const TorchmdxForce& owner) : owner(owner) {}
    void initialize(OpenMM::ContextImpl& context) override;
    const OpenMM::Force& getOwner() const override { return owner; }
    void updateContextState(OpenMM::ContextImpl&, bool&) override {}
    double calcForcesAndEnergy(OpenMM::ContextImpl& context, bool includeForces, bool includeEnergy, int groups) override;
    std::map<std::string, double> getDefaultParameters() override;
    std::vector<std::string> getKernelNames() override { return {CalcTorchmdxKernel::Name()}; }

private:
    const TorchmdxForce& owner;
    OpenMM::Kernel kernel;
};

// A session in Python, closed with its kernel.
class Session {
public:
    Session() = default;
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;
    ~Session() {
        if (id && alive)
            callbacks.close(id);
    }
    void open(long long provider, int device);
    long long id = 0;
};

// The particles of the force in Å, and the box as nine numbers.
std::vector<double> positionsOf(OpenMM::ContextImpl& context, const std::vector<int>& particles);
std::vector<double> cellOf(OpenMM::ContextImpl& context);
std::vector<int> particlesOf(OpenMM::ContextImpl& context, const TorchmdxForce& force);
// Whether forces with this scale parameter contribute to dE/dparameter. As a torchmdx force has no method to request it in
// Python, they do where any force of the Context was requested to, and where no other force has the parameter.
bool contributesDerivative(OpenMM::ContextImpl& context, const std::string& parameter);

void registerReferenceKernels();
#ifdef TORCHMDX_CUDA
bool registerCudaKernels();
#endif

}  // namespace torchmdx
