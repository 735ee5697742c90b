"""Security rules for AWS resources, as a Pulumi policy pack and for the tests."""
