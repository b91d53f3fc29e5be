"""The kinds of Kubernetes objects that we touch: group, version, plural name, and the path of each in the API."""

from dataclasses import dataclass

__all__ = [
    "ACCESS_REVIEWS", "CLAIMS", "COMMANDS", "CONFIGMAPS", "CRDS", "EVENTS", "JOBS", "NAMESPACES", "NODES", "PODGROUPS", "PODS", "PRIORITY_CLASSES",
    "QUEUES", "QUOTAS", "SECRETS", "SERVICE_ACCOUNTS", "STORAGE_CLASSES", "WEBHOOKS", "Resource",
]


@dataclass(frozen=True)
class Resource:
    """One kind of object.

    Attributes:
        group: API group, "" for the core.
        version: Version of the group.
        plural: Name in paths and in RBAC rules.
        kind: Name in manifests.
        namespaced: False for objects of the whole cluster.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """What stands in ``apiVersion``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def full_name(self) -> str:
        """Name as kubectl knows it, with the group where there is one."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str | None = None, name: str | None = None, sub: str | None = None) -> str:
        """Path of the collection, an object, or a subresource; a namespace is ignored where there are none."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        inside = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return root + inside + f"/{self.plural}" + (f"/{name}" if name else "") + (f"/{sub}" if sub else "")


JOBS = Resource("batch.volcano.sh", "v1alpha1", "jobs", "Job")
PODGROUPS = Resource("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup")
QUEUES = Resource("scheduling.volcano.sh", "v1beta1", "queues", "Queue", namespaced=False)
COMMANDS = Resource("bus.volcano.sh", "v1alpha1", "commands", "Command")
PODS = Resource("", "v1", "pods", "Pod")
CONFIGMAPS = Resource("", "v1", "configmaps", "ConfigMap")
SECRETS = Resource("", "v1", "secrets", "Secret")
EVENTS = Resource("", "v1", "events", "Event")
CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False)
STORAGE_CLASSES = Resource("storage.k8s.io", "v1", "storageclasses", "StorageClass", namespaced=False)
CRDS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False)
WEBHOOKS = Resource("admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration", namespaced=False)
ACCESS_REVIEWS = Resource("authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False)
