"""S3, FSx, and the KMS key that encrypts them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from infra.targets.aws.rehearse.plugin.calls import delete, read_existence, wait_until_available, wait_until_gone
from infra.targets.aws.rehearse.plugin.kind import (
    Aws,
    Created,
    Kind,
    Props,
    Tags,
    call_parameters,
    delete_if_exists,
    get_if_exists,
    tag_list,
    to_api,
)

# Key of a file's path in the protocol (pulumi/runtime/rpc.py).
_ASSET_PATH = "path"


def _create_bucket(aws: Aws, props: Props, _tags: Tags) -> Created:
    name = props["bucket"]
    location = {"CreateBucketConfiguration": {"LocationConstraint": aws.region}} if aws.region != "us-east-1" else {}
    aws.s3.create_bucket(Bucket=name, **location)
    return name, {"arn": f"arn:aws:s3:::{name}"}


def _bucket(aws: Aws, id_: str, _props: Props) -> Props | None:
    return None if get_if_exists(lambda: aws.s3.head_bucket(Bucket=id_)) is None else {}


def _update_bucket(aws: Aws, id_: str, _news: Props, tags: Tags) -> Props:
    aws.s3.put_bucket_tagging(Bucket=id_, Tagging={"TagSet": tag_list(tags)})
    return {}


def _delete_bucket(aws: Aws, id_: str, props: Props) -> None:
    if props.get("forceDestroy"):
        listing = get_if_exists(lambda: aws.s3.list_object_versions(Bucket=id_)) or {}
        for version in (*listing.get("Versions", ()), *listing.get("DeleteMarkers", ())):
            aws.s3.delete_object(Bucket=id_, Key=version["Key"], VersionId=version["VersionId"])
    delete_if_exists(lambda: aws.s3.delete_bucket(Bucket=id_))


def _bucket_setting(
    token: str, change: str, put: Callable[[Aws, Props], None], delete_operation: str, nested: str = ""
) -> Kind:
    """Return the kind of a bucket setting, which is a separate resource with the bucket's id."""

    def create(aws: Aws, props: Props, _tags: Tags) -> Created:
        put(aws, props)
        return props["bucket"], {}

    def update(aws: Aws, _id: str, news: Props, _tags: Tags) -> Props:
        put(aws, news)
        return {}

    def read(aws: Aws, id_: str, _props: Props) -> Props | None:
        return _bucket(aws, id_, {})

    def delete(aws: Aws, id_: str, _props: Props) -> None:
        if delete_operation:
            delete_if_exists(lambda: getattr(aws.s3, delete_operation)(Bucket=id_))

    nested_names = {change.split(maxsplit=1)[0].rstrip("!"): nested} if nested else {}
    return Kind(token, "bucket!", create, delete, read, change=change, update=update, nested=nested_names)


def _put_access(aws: Aws, props: Props) -> None:
    settings = call_parameters(props, "blockPublicAcls blockPublicPolicy ignorePublicAcls restrictPublicBuckets")
    aws.s3.put_public_access_block(Bucket=props["bucket"], PublicAccessBlockConfiguration=settings)


def _put_encryption(aws: Aws, props: Props) -> None:
    rules = [
        {
            "ApplyServerSideEncryptionByDefault": {
                "SSEAlgorithm": rule["applyServerSideEncryptionByDefault"]["sseAlgorithm"],
                "KMSMasterKeyID": rule["applyServerSideEncryptionByDefault"]["kmsMasterKeyId"],
            },
            "BucketKeyEnabled": rule["bucketKeyEnabled"],
        }
        for rule in props["rules"]
    ]
    aws.s3.put_bucket_encryption(Bucket=props["bucket"], ServerSideEncryptionConfiguration={"Rules": rules})


def _put_versioning(aws: Aws, props: Props) -> None:
    status = {"Status": props["versioningConfiguration"]["status"]}
    aws.s3.put_bucket_versioning(Bucket=props["bucket"], VersioningConfiguration=status)


def _put_policy(aws: Aws, props: Props) -> None:
    aws.s3.put_bucket_policy(Bucket=props["bucket"], Policy=props["policy"])


def _put_lifecycle(aws: Aws, props: Props) -> None:
    rules = [
        {("ID" if key == "id" else _s3(key)): to_api(value) for key, value in rule.items()} for rule in props["rules"]
    ]
    aws.s3.put_bucket_lifecycle_configuration(Bucket=props["bucket"], LifecycleConfiguration={"Rules": rules})


def _s3(key: str) -> str:
    return key[0].upper() + key[1:]


def _put_object(aws: Aws, props: Props) -> None:
    source = props.get("source")
    body = Path(source[_ASSET_PATH]).read_bytes() if source else props["content"].encode()
    kind = {"ContentType": props["contentType"]} if props.get("contentType") else {}
    aws.s3.put_object(
        Bucket=props["bucket"],
        Key=props["key"],
        Body=body,
        ServerSideEncryption=props["serverSideEncryption"],
        SSEKMSKeyId=props["kmsKeyId"],
        **kind,
    )


def _create_object(aws: Aws, props: Props, _tags: Tags) -> Created:
    _put_object(aws, props)
    return props["key"], {}


def _update_object(aws: Aws, _id: str, news: Props, _tags: Tags) -> Props:
    _put_object(aws, news)
    return {}


def _object(aws: Aws, id_: str, props: Props) -> Props | None:
    return None if get_if_exists(lambda: aws.s3.head_object(Bucket=props["bucket"], Key=id_)) is None else {}


def _delete_object(aws: Aws, id_: str, props: Props) -> None:
    delete_if_exists(lambda: aws.s3.delete_object(Bucket=props["bucket"], Key=id_))


def _create_key(aws: Aws, props: Props, tags: Tags) -> Created:
    created = aws.kms.create_key(
        Description=props["description"],
        Policy=props["policy"],
        Tags=[{"TagKey": key, "TagValue": value} for key, value in tags.items()],
    )["KeyMetadata"]
    return created["KeyId"], {"arn": created["Arn"], "keyId": created["KeyId"]}


def _rotate_key(aws: Aws, id_: str, props: Props, _tags: Tags) -> Props:
    if props.get("enableKeyRotation"):
        aws.kms.enable_key_rotation(KeyId=id_)
    return {}


def _key(aws: Aws, id_: str, _props: Props) -> Props | None:
    answer = get_if_exists(lambda: aws.kms.describe_key(KeyId=id_))
    if answer is None or answer["KeyMetadata"]["KeyState"] == "PendingDeletion":
        return None
    return {"description": answer["KeyMetadata"]["Description"]}


def _update_key(aws: Aws, id_: str, news: Props, tags: Tags) -> Props:
    aws.kms.put_key_policy(KeyId=id_, PolicyName="default", Policy=news["policy"])
    aws.kms.tag_resource(KeyId=id_, Tags=[{"TagKey": key, "TagValue": value} for key, value in tags.items()])
    return {}


def _delete_key(aws: Aws, id_: str, props: Props) -> None:
    aws.kms.schedule_key_deletion(KeyId=id_, PendingWindowInDays=props["deletionWindowInDays"])


def _create_alias(aws: Aws, props: Props, _tags: Tags) -> Created:
    aws.kms.create_alias(AliasName=props["name"], TargetKeyId=props["targetKeyId"])
    return props["name"], {}


def _alias(aws: Aws, id_: str, props: Props) -> Props | None:
    answer = get_if_exists(lambda: aws.kms.list_aliases(KeyId=props["targetKeyId"]))
    names = [alias["AliasName"] for alias in (answer or {}).get("Aliases", [])]
    return {} if id_ in names else None


_LUSTRE = (
    "deploymentType perUnitStorageThroughput dataCompressionType efaEnabled metadataConfiguration copyTagsToBackups "
    "automaticBackupRetentionDays"
)


def _create_lustre(aws: Aws, props: Props, tags: Tags) -> Created:
    filesystem = aws.fsx.create_file_system(
        FileSystemType="LUSTRE",
        SubnetIds=[props["subnetIds"]],
        LustreConfiguration=call_parameters(props, _LUSTRE),
        Tags=tag_list(tags),
        **call_parameters(props, "storageCapacity storageType securityGroupIds kmsKeyId fileSystemTypeVersion"),
    )["FileSystem"]
    return filesystem["FileSystemId"], {}


def _await_lustre(aws: Aws, id_: str, _props: Props, _tags: Tags) -> Props:
    def read_row() -> Props:
        row: Props = aws.fsx.describe_file_systems(FileSystemIds=[id_])["FileSystems"][0]
        return row

    return _read_lustre(wait_until_available(read_row, "Lifecycle"))


def _lustre(aws: Aws, id_: str, _props: Props) -> Props | None:
    answer = get_if_exists(lambda: aws.fsx.describe_file_systems(FileSystemIds=[id_]))
    rows = (answer or {}).get("FileSystems") or []
    return _read_lustre(rows[0]) if rows else None


def _read_lustre(row: Props) -> Props:
    mount = row["LustreConfiguration"]["MountName"]
    seen = {"storageCapacity": row["StorageCapacity"], "dnsName": row["DNSName"], "mountName": mount}
    return seen | {"arn": row["ResourceARN"]}


def _update_lustre(aws: Aws, id_: str, news: Props, tags: Tags) -> Props:
    aws.fsx.update_file_system(FileSystemId=id_, StorageCapacity=news["storageCapacity"])
    aws.fsx.tag_resource(ResourceARN=(_lustre(aws, id_, news) or {})["arn"], Tags=tag_list(tags))
    return {}


def _delete_lustre(aws: Aws, id_: str, props: Props) -> None:
    skip = {"SkipFinalBackup": bool(props.get("skipFinalBackup"))}
    delete_if_exists(lambda: aws.fsx.delete_file_system(FileSystemId=id_, LustreConfiguration=skip))

    def read_state() -> str | None:
        rows = (get_if_exists(lambda: aws.fsx.describe_file_systems(FileSystemIds=[id_])) or {}).get("FileSystems")
        return str(rows[0]["Lifecycle"]) if rows else None

    wait_until_gone(read_state)


def _create_link(aws: Aws, props: Props, tags: Tags) -> Created:
    link = aws.fsx.create_data_repository_association(
        FileSystemId=props["fileSystemId"],
        FileSystemPath=props["fileSystemPath"],
        DataRepositoryPath=props["dataRepositoryPath"],
        BatchImportMetaDataOnCreate=props["batchImportMetaDataOnCreate"],
        S3=to_api(props["s3"]),
        Tags=tag_list(tags),
    )["Association"]
    return link["AssociationId"], {}


KINDS = (
    Kind(
        "aws:s3/bucket:Bucket",
        "bucket",
        _create_bucket,
        _delete_bucket,
        _bucket,
        change="forceDestroy",
        update=_update_bucket,
        complete=_update_bucket,
        computed="arn",
        tagged=True,
    ),
    _bucket_setting(
        "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock",
        "blockPublicAcls blockPublicPolicy ignorePublicAcls restrictPublicBuckets",
        _put_access,
        "delete_public_access_block",
    ),
    _bucket_setting(
        "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration",
        "rules!",
        _put_encryption,
        "delete_bucket_encryption",
        "applyServerSideEncryptionByDefault sseAlgorithm kmsMasterKeyId bucketKeyEnabled",
    ),
    _bucket_setting(
        "aws:s3/bucketVersioning:BucketVersioning", "versioningConfiguration!", _put_versioning, "", "status"
    ),
    _bucket_setting("aws:s3/bucketPolicy:BucketPolicy", "policy!", _put_policy, "delete_bucket_policy"),
    _bucket_setting(
        "aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration",
        "rules!",
        _put_lifecycle,
        "delete_bucket_lifecycle",
        "id status filter prefix abortIncompleteMultipartUpload daysAfterInitiation noncurrentVersionExpiration "
        "noncurrentDays expiration days",
    ),
    Kind(
        "aws:s3/bucketObjectv2:BucketObjectv2",
        "bucket! key!",
        _create_object,
        _delete_object,
        _object,
        change="source content contentType serverSideEncryption kmsKeyId",
        update=_update_object,
    ),
    Kind(
        "aws:kms/key:Key",
        "",
        _create_key,
        _delete_key,
        _key,
        change="description enableKeyRotation deletionWindowInDays policy",
        update=_update_key,
        complete=_rotate_key,
        computed="arn keyId",
        tagged=True,
    ),
    Kind("aws:kms/alias:Alias", "name targetKeyId!", _create_alias, delete("kms", "delete_alias", "AliasName"), _alias),
    Kind(
        "aws:fsx/lustreFileSystem:LustreFileSystem",
        "subnetIds! securityGroupIds kmsKeyId deploymentType storageType efaEnabled fileSystemTypeVersion "
        "copyTagsToBackups",
        _create_lustre,
        _delete_lustre,
        _lustre,
        change="storageCapacity perUnitStorageThroughput dataCompressionType metadataConfiguration skipFinalBackup "
        "automaticBackupRetentionDays",
        update=_update_lustre,
        complete=_await_lustre,
        computed="dnsName mountName arn",
        tagged=True,
        nested={"metadataConfiguration": "mode"},
    ),
    Kind(
        "aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation",
        "fileSystemId! fileSystemPath! dataRepositoryPath! batchImportMetaDataOnCreate",
        _create_link,
        delete("fsx", "delete_data_repository_association", "AssociationId"),
        read_existence("fsx", "describe_data_repository_associations", "AssociationIds"),
        change="s3",
        tagged=True,
        nested={"s3": "autoImportPolicy autoExportPolicy events"},
    ),
)
