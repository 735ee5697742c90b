"""A `pulumi-resource-aws` plugin for tests: only the resource types that the program uses, on boto3."""
