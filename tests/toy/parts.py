"""What the toys register with the core."""

from tests.toy.model import LabelIntent
from tests.toy.resource import Label
from vfioctl.core.registry import Parts

PARTS = Parts(resources=(Label(),), intents=(LabelIntent,))
