"""Implementations that break one law each, for every law of every kit."""

from __future__ import annotations

from tests.testing.zoo.agents import AGENTS
from tests.testing.zoo.buses import BUSES
from tests.testing.zoo.drivers import DRIVERS
from tests.testing.zoo.equivalence import EAGER, EQUIVALENCE
from tests.testing.zoo.executors import EXECUTORS
from tests.testing.zoo.inferences import INFERENCES
from tests.testing.zoo.interceptors import INTERCEPTORS
from tests.testing.zoo.journals import JOURNALS
from tests.testing.zoo.keys import KEYS
from tests.testing.zoo.labels import LABELS
from tests.testing.zoo.layers import LAYERS
from tests.testing.zoo.objects import OBJECTS
from tests.testing.zoo.others import OTHERS
from tests.testing.zoo.plans import PLANS
from tests.testing.zoo.queues import QUEUES
from tests.testing.zoo.sandboxes import SANDBOXES
from tests.testing.zoo.sessions import SESSIONS
from tests.testing.zoo.stores import STORES
from tests.testing.zoo.translations import TRANSLATIONS
from tests.testing.zoo.wire_formats import WIRE_FORMATS
from tests.testing.zoo.zoo import Member

MEMBERS: tuple[Member, ...] = (
    *DRIVERS,
    *EQUIVALENCE,
    *EAGER,
    *EXECUTORS,
    *INTERCEPTORS,
    *JOURNALS,
    *WIRE_FORMATS,
    *OTHERS,
    *INFERENCES,
    *STORES,
    *TRANSLATIONS,
    *BUSES,
    *OBJECTS,
    *KEYS,
    *LAYERS,
    *AGENTS,
    *SESSIONS,
    *SANDBOXES,
    *QUEUES,
    *LABELS,
    *PLANS,
)
