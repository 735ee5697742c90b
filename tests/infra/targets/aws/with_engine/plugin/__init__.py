"""`pulumi-resource-aws` for tests: the resource types that the program uses, on boto3, and no others."""
