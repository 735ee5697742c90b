"""The real Pulumi engine on AWS as moto has it: a plugin of our own on boto3, and what whole life cycles leave."""
