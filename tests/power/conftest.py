from tests.moto_server import aws, moto

__all__ = ["aws", "moto"]
