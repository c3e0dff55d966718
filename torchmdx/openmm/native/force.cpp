#include "force.h"
#include "openmm/System.h"
#include "openmm/reference/ReferencePlatform.h"
#include "openmm/serialization/SerializationNode.h"
#include "openmm/serialization/SerializationProxy.h"
#include <memory>
#include <mutex>

using namespace OpenMM;
using std::map;
using std::string;
using std::vector;

namespace torchmdx {

Callbacks callbacks;
Units units;
std::atomic<bool> alive{false};

void requireAlive() {
    if (!alive)
        throw OpenMMException("a torchmdx force was evaluated while Python was shutting down");
}

ForceImpl* TorchmdxForce::createImpl() const {
    return new TorchmdxForceImpl(*this);
}

void TorchmdxForceImpl::initialize(ContextImpl& context) {
    int count = context.getSystem().getNumParticles();
    for (int i : owner.particles)
        if (i < 0 || i >= count)
            throw OpenMMException("TorchmdxForce: particles must be between 0 and " + std::to_string(count - 1) + ", got " +
                                  std::to_string(i));
    kernel = context.getPlatform().createKernel(CalcTorchmdxKernel::Name(), context);
    kernel.getAs<CalcTorchmdxKernel>().initialize(context, owner);
}

double TorchmdxForceImpl::calcForcesAndEnergy(ContextImpl& context, bool includeForces, bool includeEnergy, int groups) {
    if ((groups & (1 << owner.getForceGroup())) == 0)
        return 0.0;
    requireAlive();
    return kernel.getAs<CalcTorchmdxKernel>().execute(context, includeForces, includeEnergy);
}

map<string, double> TorchmdxForceImpl::getDefaultParameters() {
    map<string, double> parameters;
    if (!owner.scaleParameter.empty())
        parameters[owner.scaleParameter] = 1.0;
    return parameters;
}

void Session::open(long long provider, int device) {
    requireAlive();
    id = answerOf([&](char* message) { return callbacks.open(provider, device, message, MESSAGE); });
}

vector<double> positionsOf(ContextImpl& context, const vector<int>& particles) {
    vector<Vec3> all;
    context.getPositions(all);
    vector<double> found;
    found.reserve(3 * particles.size());
    for (int i : particles)
        for (int k = 0; k < 3; k++)
            found.push_back(all[i][k] * units.length);
    return found;
}

vector<double> cellOf(ContextImpl& context) {
    Vec3 box[3];
    context.getPeriodicBoxVectors(box[0], box[1], box[2]);
    vector<double> cell;
    for (const Vec3& vector : box)
        for (int k = 0; k < 3; k++)
            cell.push_back(vector[k] * units.length);
    return cell;
}

vector<int> particlesOf(ContextImpl& context, const TorchmdxForce& force) {
    vector<int> particles = force.particles;
    if (particles.empty())
        for (int i = 0; i < context.getSystem().getNumParticles(); i++)
            particles.push_back(i);
    return particles;
}

void CalcTorchmdxKernel::adopt(ContextImpl& context, const TorchmdxForce& force) {
    particles = particlesOf(context, force);
    periodic = force.periodic;
    scaleParameter = force.scaleParameter;
    energyOffset = force.energyOffset;
    derivative = !scaleParameter.empty() && contributesDerivative(context, scaleParameter);
}

double CalcTorchmdxKernel::scaleOf(ContextImpl& context) const {
    return scaleParameter.empty() ? 1.0 : context.getParameter(scaleParameter);
}

double CalcTorchmdxKernel::finished(double energy, double scale, map<string, double>& derivatives) const {
    double shifted = energy * units.energy - energyOffset;
    if (derivative)
        derivatives[scaleParameter] += shifted;
    return shifted * scale;
}

// CPU platforms: positions and forces pass through Python.
class ReferenceTorchmdxKernel : public CalcTorchmdxKernel {
public:
    using CalcTorchmdxKernel::CalcTorchmdxKernel;

    void initialize(ContextImpl& context, const TorchmdxForce& force) override {
        adopt(context, force);
        session.open(force.provider, -1);
    }

    double execute(ContextImpl& context, bool includeForces, bool) override {
        vector<double> positions = positionsOf(context, particles), cell, found(positions.size());
        if (periodic)
            cell = cellOf(context);
        double energy = 0.0;
        answerOf([&](char* message) {
            return callbacks.evaluate(session.id, positions.data(), periodic ? cell.data() : nullptr, &energy,
                                      includeForces ? found.data() : nullptr, message, MESSAGE);
        });
        double scale = scaleOf(context);
        auto* data = static_cast<ReferencePlatform::PlatformData*>(context.getPlatformData());
        if (includeForces) {
            vector<Vec3>& forces = *data->forces;
            for (size_t i = 0; i < particles.size(); i++)
                forces[particles[i]] += Vec3(found[3 * i], found[3 * i + 1], found[3 * i + 2]) * (units.force * scale);
        }
        return finished(energy, scale, *data->energyParameterDerivatives);
    }

private:
    Session session;
};

class ReferenceFactory : public KernelFactory {
public:
    KernelImpl* createKernelImpl(string name, const Platform& platform, ContextImpl&) const override {
        return new ReferenceTorchmdxKernel(name, platform);
    }
};

void registerReferenceKernels() {
    for (int i = 0; i < Platform::getNumPlatforms(); i++) {
        Platform& platform = Platform::getPlatform(i);
        if (dynamic_cast<ReferencePlatform*>(&platform) != nullptr)  // the base class of the CPU platform, too
            platform.registerKernelFactory(CalcTorchmdxKernel::Name(), new ReferenceFactory());
    }
}

// Appended to every reference in a file: OpenMM's XML reader loses the last character if only that follows an escaped
// one, as in &quot;}
const string END = "..";

class TorchmdxForceProxy : public SerializationProxy {
public:
    TorchmdxForceProxy() : SerializationProxy("TorchmdxForce") {}

    void serialize(const void* object, SerializationNode& node) const override {
        const auto& force = *static_cast<const TorchmdxForce*>(object);
        node.setIntProperty("version", 1);
        node.setIntProperty("forceGroup", force.getForceGroup());
        node.setStringProperty("name", force.getName());
        node.setBoolProperty("periodic", force.periodic);
        node.setStringProperty("scaleParameter", force.scaleParameter);
        node.setBoolProperty("derivative", force.derivative);
        node.setDoubleProperty("energyOffset", force.energyOffset);
        node.setStringProperty("reference", force.reference + END);
        SerializationNode& particles = node.createChildNode("Particles");
        for (int i : force.particles)
            particles.createChildNode("Particle").setIntProperty("index", i);
    }

    void* deserialize(const SerializationNode& node) const override {
        int version = node.getIntProperty("version");
        if (version != 1)
            throw OpenMMException("this torchmdx reads version 1 of TorchmdxForce, got " + std::to_string(version));
        requireAlive();
        auto force = std::make_unique<TorchmdxForce>();
        force->setForceGroup(node.getIntProperty("forceGroup"));
        force->setName(node.getStringProperty("name"));
        force->periodic = node.getBoolProperty("periodic");
        force->scaleParameter = node.getStringProperty("scaleParameter");
        force->derivative = node.getBoolProperty("derivative", false);
        force->energyOffset = node.getDoubleProperty("energyOffset", 0.0);
        const string text = node.getStringProperty("reference");
        force->reference = text.substr(0, text.size() - END.size());
        for (const SerializationNode& particle : node.getChildNode("Particles").getChildren())
            force->particles.push_back(particle.getIntProperty("index"));
        force->provider =
            answerOf([&](char* message) { return callbacks.restore(force->reference.c_str(), message, MESSAGE); });
        return force.release();
    }
};

}  // namespace torchmdx

using namespace torchmdx;

// Called from Python. Returns 1 if the CUDA platform supports the force, 0 if only the CPU platforms do.
extern "C" int torchmdx_register(const Callbacks* given, const Units* constants) {
    callbacks = *given;
    units = *constants;
    alive = true;
    static std::once_flag once;
    static int cuda = 0;
    std::call_once(once, [] {
        SerializationProxy::registerProxy(typeid(TorchmdxForce), new TorchmdxForceProxy());
        registerReferenceKernels();
#ifdef TORCHMDX_CUDA
        cuda = registerCudaKernels();
#endif
    });
    return cuda;
}

extern "C" void torchmdx_shut_down() {
    alive = false;
}

// Adds a force to an OpenMM::System and returns its index.
extern "C" int torchmdx_add(void* system, long long provider, const int* particles, int count, int periodic,
                            const char* scaleParameter, const char* reference, double energyOffset) {
    auto* force = new TorchmdxForce();
    force->provider = provider;
    force->particles.assign(particles, particles + count);
    force->periodic = periodic != 0;
    force->scaleParameter = scaleParameter;
    force->reference = reference;
    force->energyOffset = energyOffset;
    return static_cast<System*>(system)->addForce(force);
}

// Requests dE/dscaleParameter from a force. Returns 0 if it is not a TorchmdxForce, or has another parameter.
extern "C" int torchmdx_request_derivative(void* force, const char* parameter) {
    auto* own = dynamic_cast<TorchmdxForce*>(static_cast<Force*>(force));
    if (own == nullptr || own->scaleParameter != parameter)
        return 0;
    own->derivative = true;
    return 1;
}
