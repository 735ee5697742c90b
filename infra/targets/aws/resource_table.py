"""Every kind of resource that a cluster on AWS is made of: why it is there, what it costs, which rights it takes.

One table for the pre-flight (may whoever runs `up` do all this?) and for the page that explains the cluster; a test
holds that it names exactly what the examples make."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cluster.spec import ClusterSpec
from infra.targets.aws.plan.budget import stops
from infra.targets.aws.plan.capacity import options
from infra.targets.aws.plan.network import endpoints, zones
from infra.targets.aws.spec import aws_section

Condition = Callable[[ClusterSpec], bool]


@dataclass(frozen=True)
class Kind:
    type: str
    """As the engine calls it, without the provider's name."""
    why: str
    actions: str
    """IAM actions of making, reading, changing and removing it: `service: Action Action`, `;` between services."""
    prices: tuple[str, ...] = ()
    """Entries of the price table that it is paid by; none where it costs nothing of its own."""
    when: Condition = lambda _: True

    @property
    def needed(self) -> tuple[str, ...]:
        services = (part.partition(":") for part in self.actions.split(";") if part.strip())
        return tuple(f"{service.strip()}:{action}" for service, _, names in services for action in names.split())


def kinds(spec: ClusterSpec) -> tuple[Kind, ...]:
    return tuple(kind for kind in KINDS if kind.when(spec))


def actions(spec: ClusterSpec) -> tuple[str, ...]:
    """What whoever runs `up` and `teardown` must be allowed to do, each once."""
    return tuple(sorted({action for kind in kinds(spec) for action in kind.needed} | set(TAGGING)))


def _own_network(spec: ClusterSpec) -> bool:
    return not spec.network.vpc_id


def _way_out(spec: ClusterSpec) -> bool:
    return _own_network(spec) and spec.network.egress


def _flow_logs(spec: ClusterSpec) -> bool:
    return _own_network(spec) and spec.network.flow_logs


def _private_endpoints(spec: ClusterSpec) -> bool:
    return bool(endpoints(spec))


def _own_key(spec: ClusterSpec) -> bool:
    section = aws_section(spec)
    return not (section and section.kms_key)


def _monthly(spec: ClusterSpec) -> bool:
    return spec.budget.usd_per_month is not None


def _placed(spec: ClusterSpec) -> bool:
    return any(way.placement for group in spec.groups.values() for way in options(group, zones(spec)))


def _holds(kind: str) -> Condition:
    return lambda spec: any(storage.kind == kind for storage in spec.storage.values())


def _linked(spec: ClusterSpec) -> bool:
    return any(storage.s3 for storage in spec.storage.values())


# On nearly everything, at its making or after it.
TAGGING = ("ec2:CreateTags", "ec2:DeleteTags", "ec2:DescribeTags", "tag:GetResources")

KINDS: tuple[Kind, ...] = (
    Kind(
        "ec2/vpc:Vpc",
        "a network of its own: nothing of the account's other networks can reach the nodes",
        "ec2: CreateVpc DescribeVpcs DescribeVpcAttribute ModifyVpcAttribute DeleteVpc",
        when=_own_network,
    ),
    Kind(
        "ec2/defaultSecurityGroup:DefaultSecurityGroup",
        "the group that AWS makes with every VPC, emptied: what forgets to name a group can reach nothing",
        "ec2: DescribeSecurityGroups RevokeSecurityGroupIngress RevokeSecurityGroupEgress",
        when=_own_network,
    ),
    Kind(
        "ec2/subnet:Subnet",
        "one private subnet per zone for every node; one small public subnet that holds the NAT gateway alone",
        "ec2: CreateSubnet DescribeSubnets ModifySubnetAttribute DeleteSubnet",
        when=_own_network,
    ),
    Kind(
        "ec2/internetGateway:InternetGateway",
        "the NAT gateway's way out",
        "ec2: CreateInternetGateway AttachInternetGateway DescribeInternetGateways DetachInternetGateway"
        " DeleteInternetGateway",
        when=_way_out,
    ),
    Kind(
        "ec2/eip:Eip",
        "the NAT gateway's address, which others can put on their lists",
        "ec2: AllocateAddress DescribeAddresses DescribeAddressesAttribute DisassociateAddress ReleaseAddress",
        ("public-ipv4",),
        _way_out,
    ),
    Kind(
        "ec2/natGateway:NatGateway",
        "nodes fetch packages and data sets, nobody outside can begin a connection; not with `network.egress: false`",
        "ec2: CreateNatGateway DescribeNatGateways DeleteNatGateway",
        ("nat-gateway", "nat-gateway-data"),
        _way_out,
    ),
    Kind(
        "ec2/routeTable:RouteTable",
        "routes of the private subnets, and of the public one",
        "ec2: CreateRouteTable DescribeRouteTables DeleteRouteTable",
        when=_own_network,
    ),
    Kind(
        "ec2/route:Route",
        "private subnets to the NAT gateway, the public one to the internet gateway",
        "ec2: CreateRoute ReplaceRoute DeleteRoute",
        when=_way_out,
    ),
    Kind(
        "ec2/routeTableAssociation:RouteTableAssociation",
        "which subnet has which routes",
        "ec2: AssociateRouteTable ReplaceRouteTableAssociation DisassociateRouteTable",
        when=_own_network,
    ),
    Kind(
        "ec2/vpcEndpoint:VpcEndpoint",
        "S3 beside the NAT gateway (costs nothing), and Systems Manager, through which people come in",
        "ec2: CreateVpcEndpoint DescribeVpcEndpoints DescribePrefixLists ModifyVpcEndpoint DeleteVpcEndpoints;"
        "route53: AssociateVPCWithHostedZone",
        ("interface-endpoint",),
        _private_endpoints,
    ),
    Kind(
        "ec2/flowLog:FlowLog",
        "who talked to whom, refused and accepted; `network.flow_logs: false` does without",
        "ec2: CreateFlowLogs DescribeFlowLogs DeleteFlowLogs; iam: PassRole",
        when=_flow_logs,
    ),
    Kind(
        "cloudwatch/logGroup:LogGroup",
        "where the flow log is kept for 30 days",
        "logs: CreateLogGroup DescribeLogGroups ListTagsForResource TagResource PutRetentionPolicy AssociateKmsKey"
        " DeleteLogGroup",
        ("cloudwatch-logs",),
        _flow_logs,
    ),
    Kind(
        "ec2/securityGroup:SecurityGroup",
        "who may talk to whom: nodes, controller, login, storage, endpoints; no rule from the world",
        "ec2: CreateSecurityGroup DescribeSecurityGroups DescribeNetworkInterfaces RevokeSecurityGroupEgress"
        " DeleteSecurityGroup",
    ),
    Kind(
        "vpc/securityGroupIngressRule:SecurityGroupIngressRule",
        "one rule each, so that a change shows as one change; EFA wants the group to allow itself everything",
        "ec2: AuthorizeSecurityGroupIngress DescribeSecurityGroupRules ModifySecurityGroupRules"
        " RevokeSecurityGroupIngress",
    ),
    Kind(
        "vpc/securityGroupEgressRule:SecurityGroupEgressRule",
        "as above, outwards",
        "ec2: AuthorizeSecurityGroupEgress DescribeSecurityGroupRules ModifySecurityGroupRules"
        " RevokeSecurityGroupEgress",
    ),
    Kind(
        "kms/key:Key",
        "encrypts disks, files, secrets and logs; yours with `aws.kms_key`",
        "kms: CreateKey DescribeKey GetKeyPolicy PutKeyPolicy GetKeyRotationStatus EnableKeyRotation ListResourceTags"
        " TagResource UpdateKeyDescription ScheduleKeyDeletion",
        ("kms-key",),
        _own_key,
    ),
    Kind("kms/alias:Alias", "its name", "kms: CreateAlias ListAliases UpdateAlias DeleteAlias", when=_own_key),
    Kind(
        "ssm/parameter:Parameter",
        "Slurm's key, host keys and the database's password as SecureString; no secret is in user data or in clear in"
        " the state",
        "ssm: PutParameter GetParameter GetParameters DescribeParameters AddTagsToResource ListTagsForResource"
        " DeleteParameter; kms: Encrypt Decrypt",
    ),
    Kind(
        "s3/bucket:Bucket",
        "carries what a node becomes: code, templates, this cluster's description",
        "s3: CreateBucket ListBucket GetBucketAcl GetBucketCORS GetBucketLocation GetBucketLogging"
        " GetBucketObjectLockConfiguration GetBucketPolicy GetBucketRequestPayment GetBucketTagging GetBucketVersioning"
        " GetBucketWebsite GetAccelerateConfiguration GetReplicationConfiguration PutBucketTagging DeleteBucket",
        ("s3-standard",),
    ),
    Kind(
        "s3/bucketPublicAccessBlock:BucketPublicAccessBlock",
        "it can never be made public",
        "s3: PutBucketPublicAccessBlock GetBucketPublicAccessBlock",
    ),
    Kind(
        "s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration",
        "encrypted with the cluster's key",
        "s3: PutEncryptionConfiguration GetEncryptionConfiguration",
    ),
    Kind(
        "s3/bucketVersioning:BucketVersioning",
        "an object that was written over can be looked at",
        "s3: PutBucketVersioning GetBucketVersioning",
    ),
    Kind(
        "s3/bucketPolicy:BucketPolicy",
        "nothing over plain HTTP, whoever asks",
        "s3: PutBucketPolicy GetBucketPolicy DeleteBucketPolicy",
    ),
    Kind(
        "s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration",
        "old versions go by themselves",
        "s3: PutLifecycleConfiguration GetLifecycleConfiguration",
    ),
    Kind(
        "s3/bucketObjectv2:BucketObjectv2",
        "the bundle under its own hash, and the list of ways to launch nodes",
        "s3: PutObject GetObject PutObjectTagging GetObjectTagging DeleteObject DeleteObjectVersion ListBucketVersions;"
        "kms: GenerateDataKey Decrypt",
    ),
    Kind(
        "fsx/lustreFileSystem:LustreFileSystem",
        "FSx for Lustre, PERSISTENT_2: checkpoints and data at the speed of all its servers at once",
        "fsx: CreateFileSystem DescribeFileSystems UpdateFileSystem ListTagsForResource TagResource DeleteFileSystem;"
        "iam: CreateServiceLinkedRole",
        ("fsx-lustre-125", "fsx-lustre-250", "fsx-lustre-500", "fsx-lustre-1000"),
        _holds("fsx-lustre"),
    ),
    Kind(
        "fsx/dataRepositoryAssociation:DataRepositoryAssociation",
        "the bucket of `storage.*.s3` as files, both ways",
        "fsx: CreateDataRepositoryAssociation DescribeDataRepositoryAssociations UpdateDataRepositoryAssociation"
        " DeleteDataRepositoryAssociation; iam: AttachRolePolicy PutRolePolicy CreateServiceLinkedRole",
        when=_linked,
    ),
    Kind(
        "efs/fileSystem:FileSystem",
        "EFS: many small files, paid by what lies there",
        "elasticfilesystem: CreateFileSystem DescribeFileSystems DescribeLifecycleConfiguration"
        " PutLifecycleConfiguration ListTagsForResource TagResource UpdateFileSystem DeleteFileSystem",
        ("efs",),
        _holds("efs"),
    ),
    Kind(
        "efs/mountTarget:MountTarget",
        "its address in each zone",
        "elasticfilesystem: CreateMountTarget DescribeMountTargets DescribeMountTargetSecurityGroups"
        " ModifyMountTargetSecurityGroups DeleteMountTarget;"
        "ec2: DescribeSubnets CreateNetworkInterface DescribeNetworkInterfaces DeleteNetworkInterface",
        when=_holds("efs"),
    ),
    Kind(
        "route53/zone:Zone",
        "names of the nodes, private to the VPC: `<node>.<cluster>.muster.internal`",
        "route53: CreateHostedZone GetHostedZone GetChange ListTagsForResource ChangeTagsForResource"
        " ListResourceRecordSets DeleteHostedZone; ec2: DescribeVpcs",
        ("route53-zone",),
    ),
    Kind(
        "route53/record:Record",
        "those of controller and login; compute nodes get theirs when they are launched",
        "route53: ChangeResourceRecordSets GetChange ListResourceRecordSets",
    ),
    Kind(
        "iam/role:Role",
        "one per kind of machine, with as few rights as AWS can express",
        "iam: CreateRole GetRole TagRole UpdateRole UpdateAssumeRolePolicy PutRolePermissionsBoundary ListRolePolicies"
        " ListAttachedRolePolicies ListInstanceProfilesForRole DeleteRole",
    ),
    Kind(
        "iam/rolePolicy:RolePolicy",
        "those rights; the table below has them",
        "iam: PutRolePolicy GetRolePolicy DeleteRolePolicy",
    ),
    Kind(
        "iam/instanceProfile:InstanceProfile",
        "gives a machine its role",
        "iam: CreateInstanceProfile GetInstanceProfile TagInstanceProfile AddRoleToInstanceProfile"
        " RemoveRoleFromInstanceProfile DeleteInstanceProfile",
    ),
    Kind(
        "ec2/networkInterface:NetworkInterface",
        "fixed addresses of controller and login: a machine that is replaced keeps its address",
        "ec2: CreateNetworkInterface DescribeNetworkInterfaces ModifyNetworkInterfaceAttribute DeleteNetworkInterface",
    ),
    Kind(
        "ebs/volume:Volume",
        "Slurm's state and accounting; outlives the controller's machine",
        "ec2: CreateVolume DescribeVolumes ModifyVolume DeleteVolume",
        ("ebs-gp3",),
    ),
    Kind(
        "ec2/volumeAttachment:VolumeAttachment",
        "that volume on that machine",
        "ec2: AttachVolume DescribeVolumes DescribeInstances DetachVolume",
    ),
    Kind(
        "ec2/launchTemplate:LaunchTemplate",
        "how a node of a group is made, one for each way of buying it: network interfaces, disk, role, IMDSv2 only",
        "ec2: CreateLaunchTemplate CreateLaunchTemplateVersion DescribeLaunchTemplates DescribeLaunchTemplateVersions"
        " ModifyLaunchTemplate DeleteLaunchTemplate; iam: PassRole",
    ),
    Kind(
        "ec2/placementGroup:PlacementGroup",
        "nodes of a group close together, where the fabric gains by it and the purchase allows it",
        "ec2: CreatePlacementGroup DescribePlacementGroups DeletePlacementGroup",
        when=_placed,
    ),
    Kind(
        "ec2/instance:Instance",
        "controller and login; AWS restarts them on other hardware when theirs fails",
        "ec2: RunInstances DescribeInstances DescribeInstanceTypes DescribeInstanceAttribute DescribeVolumes"
        " DescribeImages ModifyInstanceAttribute StopInstances StartInstances TerminateInstances; iam: PassRole",
        ("ebs-gp3",),
    ),
    Kind(
        "budgets/budget:Budget",
        "counts what the cluster's tag costs in a month, and tells",
        "budgets: ViewBudget ModifyBudget ListTagsForResource TagResource",
        when=_monthly,
    ),
    Kind(
        "iam/policy:Policy",
        "what the budget attaches to the controller when it is spent: no launches",
        "iam: CreatePolicy GetPolicy GetPolicyVersion ListPolicyVersions TagPolicy DeletePolicy",
        when=stops,
    ),
    Kind(
        "budgets/budgetAction:BudgetAction",
        "attaches it, without asking anybody; AWS takes 0.10 USD a day for each budget that acts, the first two of an "
        "account excepted (unverified)",
        "budgets: CreateBudgetAction DescribeBudgetAction UpdateBudgetAction DeleteBudgetAction; iam: PassRole",
        when=stops,
    ),
    Kind(
        "muster:AwsResolved",
        "asks AWS once for what only AWS knows: account, images, a zone with every type; keeps the answer",
        "sts: GetCallerIdentity; ssm: GetParameter;ec2: DescribeInstanceTypeOfferings DescribeSubnets DescribeVpcs",
    ),
    Kind("muster:AwsHostKeys", "SSH host keys, made here, so that the first connection is already pinned", ""),
    Kind("muster:ClusterSecrets", "Slurm's key, the database's password, the SSH key of this stack", ""),
    Kind("muster:ChangeGuard", "refuses a change that a running cluster cannot have, before anything is touched", ""),
    Kind(
        "muster:aws:Nodes",
        "the compute nodes of a group: those always there launched as Slurm would, all of them ended with the group",
        "ec2: RunInstances DescribeInstances DescribeLaunchTemplateVersions TerminateInstances "
        "DescribeSpotInstanceRequests CancelSpotInstanceRequests; iam: PassRole;"
        "route53: ChangeResourceRecordSets ListResourceRecordSets",
    ),
    Kind(
        "muster:AwsReported",
        "waits until nodes say they are ready, fails with the step and line of the first that is not",
        "ssm: GetParametersByPath SendCommand DeleteParameters; ec2: DescribeInstances",
    ),
    Kind("muster:AwsAccess", "the files behind `make ssh`: SSH through Session Manager", ""),
    Kind(
        "muster:AwsReadyGate",
        "a job across every node that always exists, before anything is called ready",
        "ssm: SendCommand GetCommandInvocation",
    ),
)
